# Is the lead over pure MLM due to the short decay of the learning rate? Three recipes of study_dose_test.py,
# with a decay over 40 % of the steps instead of 6 %. docs/results/study_dose has the design, which was committed before
# the runs.
#
#   python -m eval.study config/finished/study_dose_decay.py
base = "study_dose.py"  # the same models, text and tasks
out_dir = "out/study-dose-decay"
seeds = (20, 21, 22, 23, 24)  # those of study_dose_test.py

# name, what it begins with, arguments of train.py
runs = (
    ("mlm-decay-2000", "", "--decay_steps=2000"),
    ("clm25-mlm-decay-2000", "", "--decay_steps=2000 --switch_step=1250"),
    ("mntp-decay-2000", "", "--decay_steps=2000 --predict_from=before"),
)
primary = ()
rates = (2e-3, 4e-3)

# kinds of figures, what is on the x-axis, the models that make a line, its name
figures = (
    ("losses", "step", "mlm-decay-2000", "pure MLM"),
    ("losses", "step", "clm25-mlm-decay-2000", "25 % CLM, then MLM"),
    ("losses", "step", "mntp-decay-2000", "MNTP"),
)
