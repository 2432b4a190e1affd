# A longer context: from windows of 2,048 tokens to windows of 8,192, for an encoder that config/610m.py has trained.
#
#   python -m data.prepare --source=long-documents/ --tokenizer=tokenizer.model --out=data/prepared/long-llama3
#   torchrun --standalone --nproc_per_node=8 train.py config/long.py --init_from=out/610m-clm-10k-mlm40-42k
#
# ModernBERT (arXiv 2412.13663) went from 1,024 to 8,192 tokens. It raised the base of the rotary positions from 10,000
# to 160,000 and trained 300B tokens more, 18 % of the 1,700B before, at 3e-4 after 8e-4; the last 50B decay. EuroBERT
# (arXiv 2503.05500) went from 2,048 to 8,192 with a base of 250,000 while its learning rate decayed.
base = "610m.py"
model = "origin"
init_from = "out/610m-mlm40-42k"
data = "data/prepared/long-llama3"  # documents of many thousands of tokens: short ones teach nothing about distance
out_dir = "out/610m-mlm40-42k-8k"

# With the base 10,000 the slowest pair turns once in 2 pi * 10,000^(62/64) = 47k tokens; with 160,000 in 690k.
seq_len = 8_192
rope_theta = 160_000.0
micro_batch = 6  # 6 * 8,192 = 24 * 2,048 tokens; 288 windows per step are 6 micro-batches on 8 GPUs
window_split = "document"  # attention stays within a document
seed = 2
max_steps = 7_500  # * 2,359,296 = 17.7B tokens, 18 % of 99.1B
lr = 2e-4  # 0.4 times that of pretraining
warmup_steps = 200
decay_steps = 1_250  # a sixth of the steps
eval_interval = 250
eval_windows = 288  # 2.4M tokens
keep_steps = ()
