# Continued pretraining: an encoder from a decoder that is there already, by masked language modelling.
#
#   python train.py config/continue.py --init_from=SmolLM2-135M --data=data/prepared/fineweb-edu-smollm2
#
# init_from is a checkpoint or a model folder of the hub; shape and weights are its own. The optimizer begins anew, so
# the learning rate is warmed up again, stays, and decays to 0. For comparison, the same from an MLM base:
#
#   python train.py config/continue.py --init_from=out/610m-mlm40-42k/ckpt-42000.pt --out_dir=out/610m-mlm40-dec42k-mlm40-54k
#
# In the paper's table (610M, a decayed base of 42k steps) 12k steps carry a CLM base past an MLM base that gets the
# same: SC 87.8 and 87.6, TC 92.8 and 92.3, IR 80.3 and 79.9; but QA 63.2 and 66.6, and at 22k 66.6 and 67.7. After 2k
# it is behind on all but TC. The paper does not state the learning rate; this is that of its pretraining.
#
# From a hub decoder trained on trillions of tokens the share is unknown; nobody has shown how little is enough.
# Set max_steps and global_batch_tokens to your own budget.
model = "origin"
init_from = "out/610m-clm-42k/ckpt-42000.pt"
data = "data/prepared/fineweb-edu-llama3"
out_dir = "out/610m-clm-dec42k-mlm40-54k"
seq_len = 2_048

# 1,152 windows * 2,048 tokens = 2,359,296 tokens a step; on 8 GPUs 144 windows each, 12 micro-steps of 12
global_batch_tokens = 2_359_296
micro_batch = 12
window_split = "random"
max_steps = 12_000  # * 2,359,296 = 28.3B tokens, 29 % of the 42k steps before
switch_step = 0
mask_ratio = 0.4

lr = 5e-4
warmup_steps = 500
decay_steps = 2_000
eps = 1e-5

eval_interval = 500
eval_windows = 1_152
checkpoint_interval = 500
compile = True
