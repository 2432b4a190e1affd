# 42k steps, 75 % CLM: 32k CLM, then 10k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-75.py
out_dir = "out/610m-clm-32k-mlm40-42k"
max_steps = 42_000
switch_step = 32_000
branch_from = "out/610m-clm-42k/ckpt-32000.pt"  # the switch; 10k steps are left to train
