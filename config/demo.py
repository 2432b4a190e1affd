# The demo: what `python train.py` does without arguments.
#
# 4 layers, width 128, 2 query heads and 1 key-value head of 64, MLP 320: 0.7M parameters in the
# blocks, 1.7M with the embedding and the head of 4,096 x 128 each.
model = "demo"
data = "data/prepared/embedded"  # about 0.56M tokens, so five epochs
out_dir = "out/demo"

# 32 windows * 128 tokens = 4,096 tokens per step, one micro-step
global_batch_tokens = 4096
micro_batch = 32
max_steps = 650  # * 4,096 = 2.7M tokens
switch_step = 200  # 0.8M tokens of CLM, then 1.8M of MLM
lr = 3e-3
warmup_steps = 50
decay_steps = 200
eps = 1e-8
