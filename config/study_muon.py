# Muon in place of AdamW: in how many steps does it reach AdamW's losses, and are the encoders as good?
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python -m eval.study config/study_muon.py
#
# The model and the text are those of config/openstax.py. AdamW's results are those of config/study_small.py with 5,000
# steps. Here are this budget, three quarters of it and half of it, each with pure CLM, pure MLM, and 1,250 steps of
# CLM followed by MLM. Short budgets branch off the long one where its learning rate begins to decay: 300 steps each.
#
# Learning rates are chosen by runs of the whole budget: runs of 1,000 steps chose 4e-3, the largest, which is worse
# than 2e-3 after 5,000.
#
# For each of 3 seeds, 5,600 steps of CLM, as many of MLM and 4,350 of MLM after CLM; 6 trials of 5,000 steps. Together
# 76,650 steps, 157M tokens: 65 minutes of two cores of an AMD EPYC (Zen 5, bf16, compiled). Then 270 fine-tuning runs:
# 27 minutes. To compare fine-tuned models of both studies, copy their folders out of out/*/results into one folder and
# run python -m eval.study report on it. Results: docs/optimizers.md.
train = "config/openstax.py --optimizer=muon"
sizes = (("muon", ""),)
out_dir = "out/study-muon"

# each a budget in steps, then the steps of CLM
splits = (
    (2_500, 0, 1_250, 2_500),
    (3_750, 0, 1_250, 3_750),
    (5_000, 0, 1_250, 5_000),
)
lrs = (1e-3, 2e-3, 4e-3)
lr_steps = 5_000
seeds = (1, 2, 3)

tasks = (
    ("sst2", "--max_steps=100 --test_examples=1000"),
    ("conll2003", "--max_steps=200 --test_examples=1000"),
    ("scifact", "--max_steps=60 --batch_size=16 --epochs=2 --full_corpus=False"),
)
finetune = "--eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)
choose_once = True
random_weights = False
