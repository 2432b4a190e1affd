# An encoder adapted to a domain: continued on your own text, with a detour through CLM.
#
#   hf download EuroBERT/EuroBERT-210m --local-dir EuroBERT-210m
#   python -m data.prepare --source=texts/ --tokenizer=EuroBERT-210m --out=data/prepared/domain
#   python train.py config/domain.py
#   python train.py config/domain.py --switch_step=0 --out_dir=out/domain-mlm
#
# The first run takes the detour. The second is MLM alone on the same batches, for comparison. For an encoder of your
# own, give its name, its seq_len, and data that are prepared with its tokenizer:
#
#   python train.py config/domain.py --init_from=out/small --data=data/prepared/domain-gpt2
#
# The detour is CLM at a constant rate. MLM follows while the rate decays, for a tenth as many steps and with 15 %
# masked (Touchent and de la Clergerie, arXiv 2605.12438). With ModernBERT on biomedical text, it gained 0.3 to 2.8
# points over MLM on the same tokens, in the means over 11 English and 8 French tasks. With the lower layers frozen
# during CLM, it gained nothing. They kept the optimizer's state; here it is new. We have not run this preset.
model = "origin"  # the shape of init_from
init_from = "EuroBERT-210m"  # 12 layers of width 768, 12 heads: 113.3M parameters in the blocks, 128,256 rows
data = "data/prepared/domain"
out_dir = "out/domain"
seq_len = 512  # EuroBERT's limit is 8,192; exported, this one reads 512 tokens

# 512 windows * 512 tokens = 262,144 tokens per step, 8 micro-batches of 64 windows
global_batch_tokens = 262_144
micro_batch = 64  # fits into 24 GB (computed, see docs/speed.md)
window_split = "document"  # attention stays within a text

# 2,200 * 262,144 = 577M tokens. Of a text of n tokens, n / 262,144 steps are one epoch; the decay is their last tenth.
# CLM takes 1.3 GFLOPs per token, MLM 0.8, because it predicts fewer tokens: 7.2e17 with the detour, 4.7e17 without.
# At 40 % of 989 TFLOP/s these are 30 and 20 minutes of an H100.
max_steps = 2_200
switch_step = 2_000
decay_steps = 200
warmup_steps = 100
mask_ratio = 0.15

lr = 1e-4  # a guess: try half and twice as much, too
beta1 = 0.9
beta2 = 0.95
eps = 1e-5
weight_decay = 0.1
grad_clip = 1.0
seed = 2  # not that of the run it continues, as in config/continue.py

eval_interval = 200
eval_windows = 1_024
checkpoint_interval = 200
compile = True
