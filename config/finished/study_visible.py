# Phase, shift, mixture or visible tokens: why does CLM first help a small encoder? docs/results/study_visible has the
# results and the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_visible.py
#
# Text and tasks are those of study_small.py. But SciFact needs a validation set, which docs/results/scifact_split.py
# makes from 160 training queries. Each recipe has the learning rate that did best in its trials.
out_dir = "out/study-visible"
train = "config/openstax.py"
seeds = (4, 5, 6, 7, 8)  # 1 and 2 were pilots

# name, what it begins with, arguments of train.py. A shorter budget branches off where its own schedule differs.
runs = (
    ("mlm-20.9M", "", "--max_steps=10200 --switch_step=0"),
    ("mlm-10.2M", "mlm-20.9M@4700", "--switch_step=0"),
    ("clm25-mlm-20.9M", "", "--max_steps=10200 --switch_step=2550 --lr=2e-3"),
    ("clm25-mlm-10.2M", "clm25-mlm-20.9M@1250", "--switch_step=1250 --lr=2e-3"),
    ("mixed-shift-20.9M", "", "--max_steps=10200 --switch_step=0 --clm_windows=0.25 --predict_from=before --lr=2e-3"),
    (
        "mixed-shift-10.2M",
        "mixed-shift-20.9M@4700",
        "--switch_step=0 --clm_windows=0.25 --predict_from=before --lr=2e-3",
    ),
    ("mlm-80-10-10-10.2M", "", "--switch_step=0 --mask_proportions=0.8,0.1,0.1 --lr=2e-3"),
    ("mlm-32-10.2M", "", "--switch_step=0 --mask_ratio=0.32"),  # 80/10/10 also shows 32 % as [MASK]
)
random = ("mlm-10.2M",)
primary = (
    ("mlm-80-10-10-10.2M", "mlm-10.2M"),
    ("mixed-shift-10.2M", "clm25-mlm-10.2M"),
    ("clm25-mlm-10.2M", "mlm-10.2M"),
    ("clm25-mlm-20.9M", "mlm-20.9M"),
)

# Fine-tuning is four times as long as in the other small studies. A second study has the short one.
tasks = (
    "conll2003 --max_steps=800 --epochs=2",
    "scifact --max_steps=240 --batch_size=16 --epochs=6 --full_corpus=False",
)
finetune = "--eval_interval=1000"
rates = (1e-3, 2e-3, 3e-3)
finetune_seeds = (1, 2)

# kinds of figures, what is on the x-axis, the models that make a line (one: a horizontal line), its name
figures = (
    ("scores", "clm_fraction", "mlm-20.9M clm25-mlm-20.9M", "20.9M tokens"),
    ("scores", "clm_fraction", "mlm-10.2M clm25-mlm-10.2M", "10.2M tokens"),
    ("scores", "tokens flops", "mlm-10.2M mlm-20.9M", "pure MLM"),
    ("scores", "tokens flops", "clm25-mlm-10.2M clm25-mlm-20.9M", "25 % CLM, then MLM"),
    ("scores", "tokens flops", "mixed-shift-10.2M mixed-shift-20.9M", "25 % CLM mixed with MLM, shifted"),
    ("scores", "mask_ratio", "mlm-32-10.2M mlm-10.2M", "pure MLM"),
    ("scores", "clm_fraction tokens flops mask_ratio", "random-mlm-10.2M", "random weights"),
    ("losses", "step", "mlm-10.2M", "pure MLM, 10.2M tokens"),
    ("losses", "step", "mlm-80-10-10-10.2M", "80/10/10, 10.2M tokens"),
    ("losses", "step", "mixed-shift-10.2M", "mixed, 10.2M tokens"),
    ("losses", "step", "clm25-mlm-10.2M", "25 % CLM, then MLM, 10.2M tokens"),
    ("losses", "step", "mlm-20.9M", "pure MLM, 20.9M tokens"),
    ("losses", "step", "clm25-mlm-20.9M", "25 % CLM, then MLM, 20.9M tokens"),
)
