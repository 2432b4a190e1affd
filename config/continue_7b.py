# Continued pretraining of a 7B decoder, Qwen 2.5 7B, on GPUs that share its weights (shard=True).
#
#   hf download Qwen/Qwen2.5-7B --local-dir Qwen2.5-7B
#   python -m data.prepare --source=fineweb-edu/ --tokenizer=Qwen2.5-7B --out=data/prepared/fineweb-edu-qwen2.5
#   torchrun --standalone --nproc_per_node=8 train.py config/continue_7b.py
#
# 28 layers, width 3,584, 28 query and 4 key-value heads of 128, MLP 18,944: 6,526M parameters in the blocks, 7,616M
# with the embedding of 152,064 x 3,584 and the untied head. Weights, gradients and AdamW's moments in fp32 are 16 bytes
# a parameter: 122 GB, more than an 80 GB GPU has. On 8 such GPUs that share them, each needs, in GB:
#
#   19.0   an eighth of 20 bytes a parameter, as PyTorch's allocator counts them
#   13.1   embedding and head gathered in fp32, their gradients, and buffers to exchange these (12 bytes a parameter)
#    4.2   two blocks of 233M gathered in bf16, and their gradients (18 bytes for a parameter of one block)
#    6.4   a chunk of the loss
#   27.5   3 windows of 2,048 tokens with compiled blocks, 9.2 each
#   70.3   in all (computed, see docs/speed.md); 1.1 more for CUDA
#
# A checkpoint has 12 bytes a parameter, 91 GB. While it saves, rank 0 needs as much free memory on the host.
base = "610m.py"
model = "origin"
init_from = "Qwen2.5-7B"
data = "data/prepared/fineweb-edu-qwen2.5"  # with the tokenizer of that folder
out_dir = "out/qwen2.5-7b-mlm40-1k"
seq_len = 2_048
shard = True
micro_batch = 3  # 48 micro-batches for the 144 windows of each of 8 GPUs, 24 on 16 GPUs

# 1,000 steps * 2,359,296 = 2.4B tokens. At 42 GFLOPs a token of MLM and 44 % of 989 TFLOP/s, it takes 63 H100 hours.
max_steps = 1_000
lr = 1e-4  # a guess: a third of the rate with which Llama 2 7B was pretrained
warmup_steps = 100
decay_steps = 200
eval_interval = 100
checkpoint_interval = 250
keep_steps = ()
