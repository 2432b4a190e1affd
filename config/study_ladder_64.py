# The first part of the ladder: width 64, 13 tokens per parameter of the blocks, from random weights each.
# docs/results/study_ladder.md has the design, and the trials that chose these rates.
#
#   python -m eval.study config/study_ladder_64.py
base = "study_ladder.py"  # the same text, tasks and seeds
out_dir = "out/study-ladder-64"
runs = (
    ("w64-mlm-13", "", "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=1e-3"),
    ("w64-clm25-13", "", "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --switch_step=1250 --lr=2e-3"),
)
primary = (("w64-clm25-13", "w64-mlm-13"),)
rates = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
