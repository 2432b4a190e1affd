# Random weights for study_cause.py: what are the scores without pretraining? Random weights need lower fine-tuning
# rates. docs/results/study_cause has the results.
#
#   python -m eval.study config/finished/study_cause_random.py
base = "study_cause.py"  # the same model, text, seeds, tasks and fine-tuning seeds
out_dir = "out/study-cause-random"

# A model comes from a run. A single step at a rate of almost zero leaves the initial weights as they are.
runs = (("random", "", "--max_steps=1 --warmup_steps=0 --decay_steps=0 --lr=1e-12"),)
primary = ()
rates = (6.25e-5, 1.25e-4, 2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
figures = ()
