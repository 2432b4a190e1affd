# A study on what comes with the project: no download, no GPU.
#
#   python -m eval.study config/study_demo.py
#
# Three models of 1.7M parameters train for 650 steps of 4,096 tokens each, train.py's own settings. The one that
# switches shares its first 325 steps with the CLM model. Then 4 models (one has random weights) * 4 tasks *
# (2 learning rates + 2 more seeds) = 64 fine-tuning runs.
out_dir = "out/study-demo"

# name, what it begins with, arguments of train.py
runs = (
    ("clm", "", "--switch_step=650"),
    ("mlm", "", "--switch_step=0"),
    ("clm50-mlm", "clm@325", "--switch_step=325"),
)
random = ("mlm",)
primary = (("clm50-mlm", "mlm"), ("clm", "mlm"))

tasks = ("embedded-sc", "embedded-tc", "embedded-qa", "embedded-ir")
finetune = "--max_steps=120 --epochs=4 --eval_interval=1000"
rates = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)

# kinds of figures, what is on the x-axis, the models that make a line (one: a horizontal line), its name
figures = (
    ("scores", "clm_fraction", "mlm clm50-mlm clm", "650 steps"),
    ("scores", "clm_fraction", "random-mlm", "random weights"),
    ("losses", "step", "mlm", "pure MLM"),
    ("losses", "step", "clm50-mlm", "50 % CLM, then MLM"),
    ("losses", "step", "clm", "pure CLM"),
)
