# 42k steps, 95 % CLM: 40k CLM, then 2k MLM, at one of four mask ratios (the study's sensitivity to it):
# torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-95.py --mask_ratio=0.2 --out_dir=out/610m-clm-40k-mlm20-42k
out_dir = "out/610m-clm-40k-mlm40-42k"
max_steps = 42_000
switch_step = 40_000
branch_from = "out/610m-clm-42k/ckpt-40000.pt"  # the switch, and where the decay begins; 2k steps are left to train
