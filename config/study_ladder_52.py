# The second part of the ladder: width 64 at 52 tokens per parameter of the blocks, with the rates that trials at this
# length chose. docs/results/study_ladder.md has the design, the trials and the results.
#
#   python -m eval.study config/study_ladder_52.py --only=pretrain-1     # then the lines on that page
base = "study_ladder_13.py"  # the same text, tasks and seeds
out_dir = "out/study-ladder-52"
runs = (
    (
        "w64-mlm-52",
        "",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=20000 --decay_steps=1200 --lr=2e-3",
    ),
    (
        "w64-clm25-52",
        "",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=20000 --decay_steps=1200 --switch_step=5000 --lr=2e-3"
        ),
    ),
)
primary = (("w64-clm25-52", "w64-mlm-52"),)
