# 12k steps, 0 % CLM: 12k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/12k-0.py
out_dir = "out/610m-mlm40-12k"
max_steps = 12_000
switch_step = 0
branch_from = "out/610m-mlm40-42k/ckpt-10000.pt"  # the decay begins at 10k; 2k steps are left to train
