# 22k steps, 75 % CLM: 17k CLM, then 5k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/22k-75.py
out_dir = "out/610m-clm-17k-mlm40-22k"
max_steps = 22_000
switch_step = 17_000
branch_from = "out/610m-clm-42k/ckpt-17000.pt"  # the switch; 5k steps are left to train
