# Trials for study_cause.py: which pretraining rate suits each recipe? They use a seed that the study does not have. The
# rate with the better validation scores after fine-tuning is taken.
#
#   python -m eval.study config/finished/study_cause_trials.py
base = "study_cause.py"  # the same model, text and tasks
out_dir = "out/study-cause-trials"
seeds = (0,)

# name, what it begins with, arguments of train.py
runs = (
    ("mntp-1e-3", "", "--lr=1e-3 --predict_from=before"),
    ("mntp-2e-3", "", "--lr=2e-3 --predict_from=before"),
    ("mlm-80-0-20-1e-3", "", "--lr=1e-3 --mask_proportions=0.8,0,0.2"),
    ("mlm-80-0-20-2e-3", "", "--lr=2e-3 --mask_proportions=0.8,0,0.2"),
    ("mlm-80-20-0-1e-3", "", "--lr=1e-3 --mask_proportions=0.8,0.2,0"),
    ("mlm-80-20-0-2e-3", "", "--lr=2e-3 --mask_proportions=0.8,0.2,0"),
    ("mlm-7e-4", "", "--lr=7e-4"),
    ("mlm-1e-3", "", "--lr=1e-3"),
    ("mlm-1.4e-3", "", "--lr=1.4e-3"),
)
primary = ()

rates = (1e-3, 2e-3)
finetune_seeds = (1,)
figures = ()
