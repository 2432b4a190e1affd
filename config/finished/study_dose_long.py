# Duration: is the lead over pure MLM gone after four times as many steps? The tiny models of study_dose.py.
# docs/results/study_dose has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_dose_long.py
base = "study_dose.py"  # the same models, text and tasks
out_dir = "out/study-dose-long"
train = (
    "config/openstax.py --n_head=1 --d_model=64 --d_ff=192 --global_batch_tokens=512 --switch_step=0 --lr=2e-3 "
    "--max_steps=20000 --eval_interval=500 --checkpoint_interval=5000"
)
seeds = (20, 21, 22, 23, 24)  # those of study_dose_test.py

# name, what it begins with, arguments of train.py. 10,000 steps branch off where their own rate begins to decay.
runs = (
    ("mlm-20k", "", ""),
    ("mntp-20k", "", "--predict_from=before"),
    ("clm25-mlm-20k", "", "--switch_step=5000"),
    ("mlm-10k", "mlm-20k@9700", "--max_steps=10000"),
    ("mntp-10k", "mntp-20k@9700", "--max_steps=10000 --predict_from=before"),
)
primary = (
    ("mntp-20k", "mlm-20k"),
    ("clm25-mlm-20k", "mlm-20k"),
)
rates = (2e-3, 4e-3)

# kinds of figures, what is on the x-axis, the models that make a line, its name
figures = (
    ("losses", "step", "mlm-20k", "pure MLM"),
    ("losses", "step", "mntp-20k", "MNTP"),
    ("losses", "step", "clm25-mlm-20k", "25 % CLM, then MLM"),
)
