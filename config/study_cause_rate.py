# Part B of config/study_cause.py at the pretraining rate of pure MLM: were 80/10/10 and 25 % CLM trained at too high a
# rate for 41.0M tokens? One seed. docs/results/study_cause has the results.
#
#   python -m eval.study config/study_cause_rate.py
base = "study_cause.py"  # the same model, text and tasks
out_dir = "out/study-cause-rate"
seeds = (9,)

runs = (
    ("mlm-80-10-10-1e-3-41M", "", "--max_steps=20000 --lr=1e-3 --mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-1e-3-41M", "", "--max_steps=20000 --lr=1e-3 --switch_step=5000"),
)
primary = ()
rates = (5e-4, 1e-3, 2e-3, 4e-3)
figures = ()
