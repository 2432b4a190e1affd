# 22k steps, 100 % CLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/22k-100.py
out_dir = "out/610m-clm-22k"
max_steps = 22_000
switch_step = 22_000
branch_from = "out/610m-clm-42k/ckpt-20000.pt"  # the decay begins at 20k; 2k steps are left to train
