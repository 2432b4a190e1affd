# Lead against tokens per parameter of the blocks, at widths 64 and 128: does the lead over pure MLM at equal tokens per
# block parameter change with width? Does 80/10/10 in the first 10 % of the steps do what a CLM phase does?
# docs/results/study_ladder.md has the design. config/study_ladder_wide.py has widths 256 and 512.
#
#   python -m eval.study config/study_ladder.py
#
# The text is that of docs/results/books.py: 8,192 ids. Four layers, one key-value head for every two query heads (width
# 64 has one of each). Parameters of the blocks, and tokens of a step:
#
#   width 64     196,672    512     d_ff is 170, so that the blocks have a quarter of the parameters of width 128
#   width 128    787,584   2,048
#
# So at both widths 2,500 steps are 6.5 tokens per block parameter, 5,000 are 13, 20,000 are 52, 40,000 are 104 and
# 80,000 are 208 (41.0M tokens at width 64). Decay is the last 6 % of the steps. A row's name ends in its tokens per
# block parameter. The learning rates are placeholders until the trials that the design describes.
base = "finished/study_cause.py"  # the same tasks and fine-tuning
out_dir = "out/study-ladder"
train = (
    "config/openstax.py --data=data/prepared/books --switch_step=0 --eval_interval=500 --checkpoint_interval=5000 "
    "--dtype=bfloat16"
)
seeds = (30, 31, 32, 33, 34)

# name, what it begins with, arguments of train.py
runs = (
    (
        "w64-mlm-208",
        "",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=80000 --decay_steps=4800 --lr=2e-3",
    ),
    (
        "w64-mlm-52",
        "w64-mlm-208@18800",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=20000 --decay_steps=1200 --lr=2e-3",
    ),
    ("w64-mlm-13", "w64-mlm-208@4700", "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=2e-3"),
    (
        "w64-mntp-208",
        "",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=80000 --decay_steps=4800 --predict_from=before --lr=2e-3"
        ),
    ),
    (
        "w64-mntp-52",
        "w64-mntp-208@18800",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=20000 --decay_steps=1200 --predict_from=before --lr=2e-3"
        ),
    ),
    (
        "w64-mntp-13",
        "w64-mntp-208@4700",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --predict_from=before --lr=2e-3",
    ),
    (
        "w64-clm25-208",
        "",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=80000 --decay_steps=4800 --switch_step=20000 --lr=2e-3"
        ),
    ),
    (
        "w64-clm25-52",
        "w64-clm25-208@5000",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=20000 --decay_steps=1200 --switch_step=5000 --lr=2e-3"
        ),
    ),
    (
        "w64-clm25-13",
        "w64-clm25-208@1250",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --switch_step=1250 --lr=2e-3",
    ),
    (
        "w64-80-10-10-26",
        "",
        (
            "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 "
            "--max_steps=10000 --decay_steps=600 --mask_proportions=0.8,0.1,0.1 --lr=2e-3"
        ),
    ),
    (
        "w64-first10-208",
        "w64-80-10-10-26@8000",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=80000 --decay_steps=4800 --lr=2e-3",
    ),
    (
        "w64-first10-52",
        "w64-80-10-10-26@2000",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --max_steps=20000 --decay_steps=1200 --lr=2e-3",
    ),
    (
        "w64-first10-13",
        "w64-80-10-10-26@500",
        "--n_head=1 --d_model=64 --d_ff=170 --global_batch_tokens=512 --lr=2e-3",
    ),
    ("w128-mlm-104", "", "--max_steps=40000 --decay_steps=2400 --lr=1e-3"),
    ("w128-mlm-52", "w128-mlm-104@18800", "--max_steps=20000 --decay_steps=1200 --lr=1e-3"),
    ("w128-mlm-13", "w128-mlm-104@4700", "--lr=1e-3"),
    ("w128-mntp-104", "", "--max_steps=40000 --decay_steps=2400 --predict_from=before --lr=1e-3"),
    ("w128-mntp-52", "w128-mntp-104@18800", "--max_steps=20000 --decay_steps=1200 --predict_from=before --lr=1e-3"),
    ("w128-mntp-13", "w128-mntp-104@4700", "--predict_from=before --lr=1e-3"),
    ("w128-clm25-104", "", "--max_steps=40000 --decay_steps=2400 --switch_step=10000 --lr=2e-3"),
    ("w128-clm25-52", "w128-clm25-104@5000", "--max_steps=20000 --decay_steps=1200 --switch_step=5000 --lr=2e-3"),
    ("w128-clm25-13", "w128-clm25-104@1250", "--switch_step=1250 --lr=2e-3"),
    ("w128-80-10-10-13", "", "--mask_proportions=0.8,0.1,0.1 --lr=2e-3"),
    ("w128-first10-104", "w128-80-10-10-13@4000", "--max_steps=40000 --decay_steps=2400 --lr=2e-3"),
    ("w128-first10-52", "w128-80-10-10-13@2000", "--max_steps=20000 --decay_steps=1200 --lr=2e-3"),
    ("w128-first10-13", "w128-80-10-10-13@500", "--lr=2e-3"),
)
primary = (
    ("w64-clm25-13", "w64-mlm-13"),
    ("w128-clm25-13", "w128-mlm-13"),
    ("w64-first10-13", "w64-mlm-13"),
    ("w128-first10-13", "w128-mlm-13"),
    ("w64-first10-13", "w64-clm25-13"),
    ("w128-first10-13", "w128-clm25-13"),
)
finetune = "--eval_interval=1000 --dtype=bfloat16"
rates = (5e-4, 1e-3, 2e-3, 4e-3)
finetune_seeds = (1,)
figures = ()
