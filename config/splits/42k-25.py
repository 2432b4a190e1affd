# 42k steps, 25 % CLM: 10k CLM, then 32k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-25.py
out_dir = "out/610m-clm-10k-mlm40-42k"
max_steps = 42_000
switch_step = 10_000
branch_from = "out/610m-clm-42k/ckpt-10000.pt"  # the switch; 32k steps are left to train
