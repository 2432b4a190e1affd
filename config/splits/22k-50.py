# 22k steps, 50 % CLM: 11k CLM, then 11k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/22k-50.py
out_dir = "out/610m-clm-11k-mlm40-22k"
max_steps = 22_000
switch_step = 11_000
branch_from = "out/610m-clm-42k/ckpt-11000.pt"  # the switch; 11k steps are left to train
