# A small encoder for one GPU and one night: CLM for a quarter of the budget, then MLM.
#
#   python -m data.prepare --source=texts/ --tokenizer=gpt2 --out=data/prepared/texts
#   python train.py config/small.py
#
# 12 layers of width 768 with 4 key-value heads: 82.6M parameters in the blocks, 159.9M with embedding and head.
model = "210m"
n_kv_head = 4
d_ff = 2_304
seq_len = 512
data = "data/prepared/texts"
out_dir = "out/small"

# 512 windows * 512 tokens = 262,144 tokens per step, 8 micro-batches of 64 windows
global_batch_tokens = 262_144
micro_batch = 64  # fits into 24 GB
window_split = "random"
max_steps = 10_000  # * 262,144 = 2.6B tokens at about 0.7 GFLOPs: 1.7e18 FLOPs, ten hours at 50 TFLOP/s
switch_step = 2_500

lr = 1e-3
warmup_steps = 500
decay_steps = 2_000

eval_interval = 500
eval_windows = 1_024
checkpoint_interval = 500
compile = True
