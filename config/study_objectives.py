# Which of the field's objectives helps a small encoder? A study for two CPU cores and two hours.
#
#   python -m eval.study config/study_tasks.py config/study_objectives.py
#
# All models get 5,000 steps of 2,048 tokens. A phase of CLM is shared where both have one learning rate. The rates were
# chosen among 1e-3, 2e-3 and 4e-3 by runs of 1,000 steps; such short runs favor large rates (docs/optimizers.md). The
# published results (docs/objectives.md) were made at the tag before-the-cut.
out_dir = "out/study-objectives"

# name, what it begins with, arguments of train.py
runs = (
    ("mlm", "", "--switch_step=0"),
    ("clm25-mlm", "", "--switch_step=1250"),
    ("clm", "", "--switch_step=5000 --lr=2e-3"),
    ("clm25-mntp", "clm@1250", "--switch_step=1250 --predict_from=before --lr=2e-3"),  # masked next-token prediction
    ("mixed-1-3", "", "--switch_step=0 --clm_windows=0.25 --lr=2e-3"),  # CLM : MLM, in windows
    ("mixed-1-1", "", "--switch_step=0 --clm_windows=0.5 --lr=4e-3"),
    ("mlm-40-to-10", "", "--switch_step=0 --mask_ratio=0.4,0.1 --lr=2e-3"),
)
random = ("mlm",)
primary = (
    ("clm25-mlm", "mlm"),
    ("clm25-mntp", "mlm"),
    ("mixed-1-3", "mlm"),
    ("mixed-1-1", "mlm"),
    ("mlm-40-to-10", "mlm"),
)
