# The paper's 1B model: the recipe of config/610m.py with another shape.
#
#   torchrun --standalone --nproc_per_node=8 train.py config/1b.py
#   torchrun --standalone --nproc_per_node=8 train.py config/1b.py \
#     --switch_step=10000 --out_dir=out/1b-clm-10k-mlm40-42k
#
# 28 layers, width 1,728, 18 query and 6 key-value heads of 96, MLP 5,120: 966.2M parameters in the
# blocks, 1,187.9M with the embedding of 128,256 x 1,728, 1,409.5M with the untied head.
base = "610m.py"
model = "1b"
out_dir = "out/1b-mlm40-42k"
micro_batch = 12  # 12 micro-batches on 8 GPUs with 80 GB; 24 for 141 GB (computed, see docs/speed.md)
