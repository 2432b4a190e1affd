# 12k steps, 75 % CLM: 9k CLM, then 3k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/12k-75.py
out_dir = "out/610m-clm-9k-mlm40-12k"
max_steps = 12_000
switch_step = 9_000
branch_from = "out/610m-clm-42k/ckpt-9000.pt"  # the switch; 3k steps are left to train
