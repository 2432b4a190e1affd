# 42k steps, 0 % CLM: 42k MLM: config/610m.py as it is
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-0.py
out_dir = "out/610m-mlm40-42k"
max_steps = 42_000
switch_step = 0
