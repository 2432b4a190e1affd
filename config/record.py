# The newest record of docs/records.md, the fewest steps to a good small encoder. It is record 3: 25 % CLM, then MLM,
# with beta2 0.99 and a higher learning rate for the embedding, which is the output head too. The parameters that this
# saves make two more layers and a wider MLP.
#
#   python train.py config/record.py
#
# 6 layers of width 128 with an MLP of 448: 1.9M parameters. The text is that of config/openstax.py. The run takes
# 6 to 12 minutes on one core of a shared AMD EPYC (Zen 5) in bf16 (five runs on November 27, 2026).
n_layer = 6
d_ff = 448
tie_embeddings = True
data = "data/prepared/openstax"
out_dir = "out/record"

# fixed by the rules: 16 windows * 128 tokens
global_batch_tokens = 2_048
eval_windows = 128

max_steps = 3_200
switch_step = 800  # 25 % CLM first
lr = 2e-3
embedding_lr_scale = 2.0
beta2 = 0.99
warmup_steps = 100
decay_steps = 900

log_interval = 20
eval_interval = 400
checkpoint_interval = 300
compile = True
