# Cause and duration: which part of 80/10/10 helps a small encoder, does it need CLM at all, and is the lead gone after
# longer training? docs/results/study_cause has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_cause.py
#
# Model, text and tasks are those of study_visible.py. Each run of 41.0M tokens is trained once, and the run of
# 10.2M tokens branches off it where its own schedule begins to differ.
out_dir = "out/study-cause"
train = "config/openstax.py --switch_step=0 --lr=2e-3 --eval_interval=100 --checkpoint_interval=1000 --dtype=float32"
seeds = (9, 10, 11, 12, 13)

# name, what it begins with, arguments of train.py
runs = (
    ("mlm-41M", "", "--max_steps=20000 --lr=1e-3"),
    ("mlm-80-10-10-41M", "", "--max_steps=20000 --mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-41M", "", "--max_steps=20000 --switch_step=5000"),
    ("mlm-10.2M", "mlm-41M@4700", "--lr=1e-3"),
    ("mlm-80-10-10-10.2M", "mlm-80-10-10-41M@4700", "--mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-10.2M", "clm25-mlm-41M@1250", "--switch_step=1250"),
    ("mntp-10.2M", "", "--predict_from=before --lr=1e-3"),
    ("mlm-80-0-20-10.2M", "", "--mask_proportions=0.8,0,0.2"),
    ("mlm-80-20-0-10.2M", "", "--mask_proportions=0.8,0.2,0"),
)
primary = (  # part A; the two pairs of part B are on the page of the design
    ("mlm-80-0-20-10.2M", "mlm-80-20-0-10.2M"),
    ("mntp-10.2M", "mlm-10.2M"),
    ("mlm-80-10-10-10.2M", "mlm-10.2M"),
    ("clm25-mlm-10.2M", "mlm-10.2M"),
    ("clm25-mlm-10.2M", "mntp-10.2M"),
)

tasks = (
    "conll2003 --max_steps=800 --epochs=2",
    "scifact --max_steps=240 --batch_size=16 --epochs=6 --full_corpus=False",
)
finetune = "--eval_interval=1000 --dtype=float32"
rates = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
finetune_seeds = (1, 2)

# kinds of figures, what is on the x-axis, the models that make a line, its name
figures = (
    ("scores", "tokens", "mlm-10.2M mlm-41M", "pure MLM"),
    ("scores", "tokens", "mlm-80-10-10-10.2M mlm-80-10-10-41M", "80/10/10"),
    ("scores", "tokens", "clm25-mlm-10.2M clm25-mlm-41M", "25 % CLM, then MLM"),
    ("losses", "step", "mlm-41M", "pure MLM"),
    ("losses", "step", "mlm-80-10-10-41M", "80/10/10"),
    ("losses", "step", "clm25-mlm-41M", "25 % CLM, then MLM"),
)
