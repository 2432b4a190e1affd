# The paper's recipe, with its 610M model on the longest budget of 42,000 steps, pure MLM.
#
#   torchrun --standalone --nproc_per_node=8 train.py config/610m.py
#   torchrun --standalone --nproc_per_node=8 train.py config/610m.py \
#     --switch_step=10000 --out_dir=out/610m-clm-10k-mlm40-42k
#
# The second command trains 10,000 steps of CLM followed by 32,000 of MLM. config/study_paper.py has all of them.
#
# 26 layers, width 1,152, 18 query and 6 key-value heads of 64, MLP 4,096: 460.1M parameters in the
# blocks, 607.9M with the embedding of 128,256 x 1,152, 755.6M with the untied head.
model = "610m"
data = "data/prepared/fineweb-edu-llama3"  # 100B tokens of FineWeb-Edu with Llama 3's tokenizer
out_dir = "out/610m-mlm40-42k"

# 1,152 windows * 2,048 tokens = 2,359,296 tokens per step; on 8 GPUs 144 windows each, 6 micro-batches of 24
global_batch_tokens = 2_359_296
micro_batch = 24  # for 80 GB; 48 for 141 GB (computed, see docs/speed.md)
window_split = "random"  # each window is cut in two; attention and prediction stay within a piece
max_steps = 42_000  # * 2,359,296 = 99.1B tokens
switch_step = 0
mask_ratio = 0.4

lr = 5e-4  # for every size and objective
warmup_steps = 2_000
decay_steps = 2_000
beta1 = 0.9
beta2 = 0.95
eps = 1e-5
weight_decay = 0.1
grad_clip = 1.0

eval_interval = 1_000
eval_windows = 1_152  # 2.4M tokens
checkpoint_interval = 500
keep_steps = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)  # the 12k and 22k budgets branch off at 10k and 20k
compile = True
