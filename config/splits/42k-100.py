# 42k steps, 100 % CLM: the trunk that all the others branch off, before its learning rate decays
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-100.py
out_dir = "out/610m-clm-42k"
max_steps = 42_000
switch_step = 42_000
# where they do (3, 6, 9, 10k for 12k; 5, 11, 17, 20k for 22k; 10, 21, 32k for 42k), and the study's checkpoints
keep_steps = (1_000, 2_000, 3_000, 5_000, 6_000, 9_000, 10_000, 11_000, 17_000, 20_000, 21_000, 32_000, 40_000)
