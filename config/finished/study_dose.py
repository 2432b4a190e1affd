# Dose and response: how many visible tokens does MLM need? A grid of two fractions of the chosen tokens: those that
# stay as they are, and those that become random tokens. Beside it, CLM phases, mixtures and masked next-token
# prediction (MNTP). docs/results/study_dose has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_dose.py
#
# A run takes about 90 seconds on one core: width 64, 512 tokens a step, 5,000 steps, 2.6M tokens. The text and the
# tasks are those of study_visible.py.
out_dir = "out/study-dose"
train = (
    "config/openstax.py --n_head=1 --d_model=64 --d_ff=192 --global_batch_tokens=512 --lr=2e-3 --switch_step=0 "
    "--eval_interval=100 --checkpoint_interval=5000 --compile=False"
)
seeds = (9, 10, 11)

# name, what it begins with, arguments of train.py. mlm-80-10-10: of the chosen tokens, 80 % are shown as [MASK], 10 %
# as a random token, and 10 % stay.
runs = (
    ("mlm", "", ""),
    ("mlm-80-10-10", "", "--mask_proportions=0.8,0.1,0.1"),
    ("mlm-80-0-20", "", "--mask_proportions=0.8,0,0.2"),
    ("mlm-80-20-0", "", "--mask_proportions=0.8,0.2,0"),
    ("clm25-mlm", "", "--switch_step=1250"),
    ("mntp", "", "--predict_from=before"),
    ("mlm-95-0-5", "", "--mask_proportions=0.95,0,0.05"),
    ("mlm-90-0-10", "", "--mask_proportions=0.9,0,0.1"),
    ("mlm-95-5-0", "", "--mask_proportions=0.95,0.05,0"),
    ("mlm-90-10-0", "", "--mask_proportions=0.9,0.1,0"),
    ("mlm-90-5-5", "", "--mask_proportions=0.9,0.05,0.05"),
    ("mlm-85-5-10", "", "--mask_proportions=0.85,0.05,0.1"),
    ("mlm-85-10-5", "", "--mask_proportions=0.85,0.1,0.05"),
    ("mlm-75-5-20", "", "--mask_proportions=0.75,0.05,0.2"),
    ("mlm-75-20-5", "", "--mask_proportions=0.75,0.2,0.05"),
    ("mlm-70-10-20", "", "--mask_proportions=0.7,0.1,0.2"),
    ("mlm-70-20-10", "", "--mask_proportions=0.7,0.2,0.1"),
    ("mlm-60-20-20", "", "--mask_proportions=0.6,0.2,0.2"),
    ("clm5-mlm", "", "--switch_step=250"),
    ("clm12.5-mlm", "", "--switch_step=625"),
    ("mixed", "", "--clm_windows=0.25"),
    ("mixed-shift", "", "--clm_windows=0.25 --predict_from=before"),
)

tasks = (
    "conll2003 --max_steps=800 --epochs=2",
    "scifact --max_steps=240 --batch_size=16 --epochs=6 --full_corpus=False",
)
finetune = "--eval_interval=1000"
rates = (2e-3,)  # one for all; on seed 9 also 1e-3
finetune_seeds = (1,)

# kinds of figures, what is on the x-axis, the models that make a line, its name
figures = (
    ("scores", "clm_fraction", "mlm clm5-mlm clm12.5-mlm clm25-mlm", "CLM, then MLM"),
    ("losses", "step", "mlm", "pure MLM"),
    ("losses", "step", "mlm-80-10-10", "80/10/10"),
    ("losses", "step", "mlm-80-0-20", "80/0/20"),
    ("losses", "step", "mlm-80-20-0", "80/20/0"),
    ("losses", "step", "clm25-mlm", "25 % CLM, then MLM"),
    ("losses", "step", "mntp", "MNTP"),
)
