# The paper's 210M model: the recipe of config/610m.py with another shape.
#
#   torchrun --standalone --nproc_per_node=8 train.py config/210m.py
#
# 12 layers, width 768, 12 query and 12 key-value heads of 64, MLP 3,072: 113.3M parameters in the
# blocks, 211.8M with the embedding of 128,256 x 768, 310.3M with the untied head.
base = "610m.py"
model = "210m"
out_dir = "out/210m-mlm40-42k"
micro_batch = 72  # 2 micro-batches on 8 GPUs with 80 GB; 144 for 141 GB (computed, see docs/speed.md)
