# 42k steps, 50 % CLM: 21k CLM, then 21k MLM
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-50.py
out_dir = "out/610m-clm-21k-mlm40-42k"
max_steps = 42_000
switch_step = 21_000
branch_from = "out/610m-clm-42k/ckpt-21000.pt"  # the switch; 21k steps are left to train
