# A test of what study_dose.py suggests: six of its recipes, with five seeds that it does not have.
# docs/results/study_dose has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_dose_test.py
base = "study_dose.py"  # the same models, text and tasks
out_dir = "out/study-dose-test"
seeds = (20, 21, 22, 23, 24)

# name, what it begins with, arguments of train.py
runs = (
    ("mlm", "", ""),
    ("mlm-1e-3", "", "--lr=1e-3"),  # the rate that suits pure MLM in models twice as wide
    ("mlm-80-10-10", "", "--mask_proportions=0.8,0.1,0.1"),
    ("mlm-80-0-20", "", "--mask_proportions=0.8,0,0.2"),
    ("mlm-80-20-0", "", "--mask_proportions=0.8,0.2,0"),
    ("clm25-mlm", "", "--switch_step=1250"),
    ("mntp", "", "--predict_from=before"),
)
primary = (
    ("mlm-80-0-20", "mlm-80-20-0"),
    ("mntp", "mlm"),
    ("mlm-80-10-10", "mlm"),
    ("clm25-mlm", "mlm"),
    ("clm25-mlm", "mntp"),
)
rates = (2e-3, 4e-3)

# kinds of figures, what is on the x-axis, the models that make a line, its name
figures = (
    ("losses", "step", "mlm", "pure MLM"),
    ("losses", "step", "mlm-1e-3", "pure MLM, rate 1e-3"),
    ("losses", "step", "mlm-80-20-0", "80/20/0"),
    ("losses", "step", "mlm-80-0-20", "80/0/20"),
    ("losses", "step", "mlm-80-10-10", "80/10/10"),
    ("losses", "step", "clm25-mlm", "25 % CLM, then MLM"),
    ("losses", "step", "mntp", "MNTP"),
)
