# 22k steps, 0 % CLM: 22k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/22k-0.py
out_dir = "out/610m-mlm40-22k"
max_steps = 22_000
switch_step = 0
branch_from = "out/610m-mlm40-42k/ckpt-20000.pt"  # the decay begins at 20k; 2k steps are left to train
