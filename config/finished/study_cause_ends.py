# Part B of study_cause.py again, on a CPU. The long runs are fine-tuned at both rates beyond the design's grid,
# and at one inside it. Short runs that branch off them have part A's rates, and show whether its mixed machines matter.
# The last two rows are pretrained at pure MLM's rate. docs/results/study_cause has the results, and says which seeds
# were run.
#
#   python -m eval.study config/finished/study_cause_ends.py
base = "study_cause.py"  # the same model, text and tasks
out_dir = "out/study-cause-ends"
train = "config/openstax.py --switch_step=0 --lr=2e-3 --eval_interval=1000 --checkpoint_interval=1000 --dtype=float32"
seeds = (9, 10, 11, 12, 13)

# name, what it begins with, arguments of train.py
runs = (
    ("mlm-41M-again", "", "--max_steps=20000 --lr=1e-3"),
    ("mlm-80-10-10-41M-again", "", "--max_steps=20000 --mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-41M-again", "", "--max_steps=20000 --switch_step=5000"),
    ("mlm-10.2M-again", "mlm-41M-again@4700", "--lr=1e-3"),
    ("mlm-80-10-10-10.2M-again", "mlm-80-10-10-41M-again@4700", "--mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-10.2M-again", "clm25-mlm-41M-again@1250", "--switch_step=1250"),
    ("mlm-80-10-10-1e-3-41M-again", "", "--max_steps=20000 --lr=1e-3 --mask_proportions=0.8,0.1,0.1"),
    ("clm25-mlm-1e-3-41M-again", "", "--max_steps=20000 --lr=1e-3 --switch_step=5000"),
)
primary = ()
figures = ()
