# A candidate for record 2 of docs/records.md, the fewest steps to a good small encoder: masked next-token prediction
# (MNTP), in which a hidden token is predicted from the position before it, without any CLM. Record 1 is in commit
# 44fa698.
#
#   python train.py config/record.py
#
# 4 layers of width 128 with an MLP of 384: 1.8M parameters. The text is that of config/openstax.py. The run takes
# about 25 minutes on one core of a shared AMD EPYC in fp32.
d_ff = 384
data = "data/prepared/openstax"
out_dir = "out/record"

# fixed by the rules: 16 windows * 128 tokens
global_batch_tokens = 2_048
eval_windows = 128

max_steps = 4_600
switch_step = 0
predict_from = "before"
lr = 1e-3
warmup_steps = 100
decay_steps = 1_400

log_interval = 20
eval_interval = 400
checkpoint_interval = 300
compile = True
