# 12k steps, 100 % CLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/12k-100.py
out_dir = "out/610m-clm-12k"
max_steps = 12_000
switch_step = 12_000
branch_from = "out/610m-clm-42k/ckpt-10000.pt"  # the decay begins at 10k; 2k steps are left to train
