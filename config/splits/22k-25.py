# 22k steps, 25 % CLM: 5k CLM, then 17k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/22k-25.py
out_dir = "out/610m-clm-5k-mlm40-22k"
max_steps = 22_000
switch_step = 5_000
branch_from = "out/610m-clm-42k/ckpt-5000.pt"  # the switch; 17k steps are left to train
