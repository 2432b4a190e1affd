# The ends of the fine-tuning grid in part B of config/study_cause.py. Its long runs are trained again, because their
# checkpoints are gone, and are fine-tuned at the two rates beyond the design's grid and at rates inside it.
# docs/results/study_cause has the results.
#
#   python -m eval.study config/study_cause_ends.py
base = "study_cause.py"  # the same model, text and tasks
out_dir = "out/study-cause-ends"
train = "config/openstax.py --switch_step=0 --lr=2e-3 --eval_interval=1000 --checkpoint_interval=1000 --dtype=float32"
seeds = (9, 10, 11, 13)  # all models of seed 12 have both rates

# name, what it begins with, arguments of train.py
runs = (
    ("mlm-41M-again", "", "--max_steps=20000 --lr=1e-3"),
    ("mlm-80-10-10-41M-again", "", "--max_steps=20000 --mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-41M-again", "", "--max_steps=20000 --switch_step=5000"),
)
primary = ()
rates = (2.5e-4, 1e-3, 2e-3, 8e-3)  # an end is no choice if a rate inside is better
finetune_seeds = (1,)
figures = ()
