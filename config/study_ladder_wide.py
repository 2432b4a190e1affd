# Widths 256 and 512 of config/study_ladder.py, for a GPU: as far as the text goes, which is four epochs at most.
# docs/results/study_ladder.md has the design.
#
#   python -m eval.study config/study_ladder_wide.py
#
# Parameters of the blocks, and tokens of a step. A step has as many tokens per parameter as at width 128.
#
#   width 256     3,148,032     8,192    20,000 steps are 163.8M tokens: about two epochs
#   width 512    12,587,520    32,768     5,000 steps are as many tokens
#
# Seeds: two at both widths. --seeds=32 adds a third at width 256, with width 512 left out of --runs.
base = "study_ladder.py"  # the same tasks and fine-tuning
out_dir = "out/study-ladder-wide"
train = (
    "config/openstax.py --data=data/prepared/books --switch_step=0 --eval_interval=500 --checkpoint_interval=5000 "
    "--dtype=bfloat16"
)
seeds = (30, 31)

# name, what it begins with, arguments of train.py
runs = (
    (
        "w256-mlm-52",
        "",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--max_steps=20000 --decay_steps=1200 --lr=1e-3"
        ),
    ),
    (
        "w256-mlm-13",
        "w256-mlm-52@4700",
        "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 --lr=1e-3",
    ),
    (
        "w256-mntp-52",
        "",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--max_steps=20000 --decay_steps=1200 --predict_from=before --lr=1e-3"
        ),
    ),
    (
        "w256-mntp-13",
        "w256-mntp-52@4700",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--predict_from=before --lr=1e-3"
        ),
    ),
    (
        "w256-clm25-52",
        "",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--max_steps=20000 --decay_steps=1200 --switch_step=5000 --lr=1e-3"
        ),
    ),
    (
        "w256-clm25-13",
        "w256-clm25-52@1250",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--switch_step=1250 --lr=1e-3"
        ),
    ),
    (
        "w256-80-10-10-6.5",
        "",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--max_steps=2500 --decay_steps=150 --mask_proportions=0.8,0.1,0.1 --lr=1e-3"
        ),
    ),
    (
        "w256-first10-52",
        "w256-80-10-10-6.5@2000",
        (
            "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 "
            "--max_steps=20000 --decay_steps=1200 --lr=1e-3"
        ),
    ),
    (
        "w256-first10-13",
        "w256-80-10-10-6.5@500",
        "--n_head=4 --n_kv_head=2 --d_model=256 --d_ff=768 --global_batch_tokens=8192 --micro_batch=64 --lr=1e-3",
    ),
    (
        "w512-mlm-13",
        "",
        "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 --lr=1e-3",
    ),
    (
        "w512-mlm-6.5",
        "w512-mlm-13@2350",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--max_steps=2500 --decay_steps=150 --lr=1e-3"
        ),
    ),
    (
        "w512-mntp-13",
        "",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--predict_from=before --lr=1e-3"
        ),
    ),
    (
        "w512-mntp-6.5",
        "w512-mntp-13@2350",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--max_steps=2500 --decay_steps=150 --predict_from=before --lr=1e-3"
        ),
    ),
    (
        "w512-clm25-13",
        "",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--switch_step=1250 --lr=1e-3"
        ),
    ),
    (
        "w512-clm25-6.5",
        "w512-clm25-13@625",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--max_steps=2500 --decay_steps=150 --switch_step=625 --lr=1e-3"
        ),
    ),
    (
        "w512-80-10-10-6.5",
        "",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--max_steps=2500 --decay_steps=150 --mask_proportions=0.8,0.1,0.1 --lr=1e-3"
        ),
    ),
    (
        "w512-first10-13",
        "w512-80-10-10-6.5@500",
        "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 --lr=1e-3",
    ),
    (
        "w512-first10-6.5",
        "w512-80-10-10-6.5@250",
        (
            "--n_head=8 --n_kv_head=4 --d_model=512 --d_ff=1536 --global_batch_tokens=32768 --micro_batch=256 "
            "--max_steps=2500 --decay_steps=150 --lr=1e-3"
        ),
    ),
)
primary = (
    ("w256-clm25-13", "w256-mlm-13"),
    ("w512-clm25-13", "w512-mlm-13"),
    ("w256-first10-13", "w256-mlm-13"),
    ("w512-first10-13", "w512-mlm-13"),
    ("w256-first10-13", "w256-clm25-13"),
    ("w512-first10-13", "w512-clm25-13"),
)
