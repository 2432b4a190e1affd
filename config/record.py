# The newest record of docs/records.md, the fewest steps to a good small encoder. It is record 1: 25 % CLM, then MLM,
# with a longer decay than row 0.
#
#   python train.py config/record.py
#
# 4 layers of width 128 with an MLP of 384: 1.8M parameters. The text is that of config/openstax.py. The run takes
# 30 to 34 minutes on one core of a shared AMD EPYC in fp32 (five runs on November 25, 2026).
d_ff = 384
data = "data/prepared/openstax"
out_dir = "out/record"

# fixed by the rules: 16 windows * 128 tokens
global_batch_tokens = 2_048
eval_windows = 128

max_steps = 5_800
switch_step = 1_450  # 25 % CLM first
lr = 2e-3
warmup_steps = 100
decay_steps = 1_000

log_interval = 20
eval_interval = 400
checkpoint_interval = 300
compile = True
