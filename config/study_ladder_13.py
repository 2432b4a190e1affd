# The first part of the ladder: 13 tokens per parameter of the blocks, with the rates that the trials chose.
# docs/results/study_ladder.md has the design, the trials and the results.
#
#   python -m eval.study config/study_ladder_13.py --only=pretrain-1     # then pretrain-2, then the lines on that page
base = "study_ladder.py"  # the same text, tasks and seeds
out_dir = "out/study-ladder-13"
runs = (
    ("w64-mlm-13", "", "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=1e-3"),
    ("w64-clm25-13", "", "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --switch_step=1250 --lr=2e-3"),
    (  # later rows begin with its steps 500 and 1250
        "w64-80-10-10",
        "",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=2000 "
            "--mask_proportions=0.8,0.1,0.1 --lr=2e-3"
        ),
    ),
    (
        "w64-first10-13",
        "w64-80-10-10@500",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=2e-3",
    ),
    (
        "w64-first25-13",
        "w64-80-10-10@1250",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=2e-3",
    ),
    (
        "w64-mntp-13",
        "",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --predict_from=before --lr=2e-3",
    ),
    ("w128-mlm-13", "", "--lr=2e-3"),
    ("w128-clm25-13", "", "--switch_step=1250 --lr=1e-3"),
    ("w128-80-10-10", "", "--max_steps=1000 --mask_proportions=0.8,0.1,0.1 --lr=2e-3"),  # for its step 500
    ("w128-first10-13", "w128-80-10-10@500", "--lr=2e-3"),
)
primary = (  # the page's corrected p-values are of the first three pairs
    ("w64-clm25-13", "w64-mlm-13"),
    ("w64-first10-13", "w64-mlm-13"),
    ("w64-first10-13", "w64-clm25-13"),
    ("w64-first25-13", "w64-clm25-13"),
    ("w128-clm25-13", "w128-mlm-13"),
    ("w128-first10-13", "w128-mlm-13"),
    ("w128-first10-13", "w128-clm25-13"),
)
rates = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
