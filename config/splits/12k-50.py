# 12k steps, 50 % CLM: 6k CLM, then 6k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/12k-50.py
out_dir = "out/610m-clm-6k-mlm40-12k"
max_steps = 12_000
switch_step = 6_000
branch_from = "out/610m-clm-42k/ckpt-6000.pt"  # the switch; 6k steps are left to train
