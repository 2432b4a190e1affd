# 12k steps, 25 % CLM: 3k CLM, then 9k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/12k-25.py
out_dir = "out/610m-clm-3k-mlm40-12k"
max_steps = 12_000
switch_step = 3_000
branch_from = "out/610m-clm-42k/ckpt-3000.pt"  # the switch; 9k steps are left to train
