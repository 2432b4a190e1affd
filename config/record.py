# The record of docs/records.md: a good small encoder for the fewest training FLOPs. 25 % CLM, then MLM, with beta2 0.99
# and a higher learning rate for the embedding.
#
#   python train.py config/record.py
#
# 4 layers of width 128 with an MLP of 384: 0.8M parameters in the blocks, 2.9M with the embedding and the output head.
# docs/results/README.md#a-text-that-anyone-can-make says how to make the text.
# The run takes 6 minutes on one core of a shared AMD EPYC (Zen 5) in bf16. When other jobs run there, it takes up to 12
# (five runs on November 28, 2026).
d_ff = 384
data = "data/prepared/books"
out_dir = "out/record"

# fixed by the rules: 16 windows * 128 tokens
global_batch_tokens = 2_048
eval_windows = 128

max_steps = 4_000
switch_step = 1_000  # 25 % CLM first
lr = 2e-3
embedding_lr_scale = 2.5
beta2 = 0.99
warmup_steps = 100
decay_steps = 1_000

log_interval = 20
eval_interval = 400
checkpoint_interval = 400
compile = True
