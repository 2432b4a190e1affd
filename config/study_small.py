# How much CLM, at which budget? A study for two CPU cores and three hours: textbooks, 1.8M parameters.
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python -m eval.study config/study_small.py
#
# The model and the text are those of config/openstax.py. The files of the three tasks go into data/tasks; python -m
# eval.tasks says where to get them. A step has 2,048 tokens:
#
#    1,200 steps   2.5M tokens
#    2,600 steps   5.3M tokens
#    5,000 steps  10.2M tokens
#   10,200 steps  20.9M tokens, 1.3 epochs
#
# The steps of CLM are 0, 25, 50 and 100 % of each budget. `repeated` names them by their number, so no number may be
# 50 % of one budget and 25 or 100 % of another: this is why the budgets do not double exactly.
#
# What it trains, with shared steps counted once: for each of 3 seeds, 10,200 + 3 * 300 steps of CLM, as many of MLM,
# and 75 % of 19,000 steps of MLM after 25 % CLM; for one seed, 50 % of 19,000 steps of MLM after 50 % CLM; 6 trials
# of 1,000 steps; 2 * 2,550 steps of continued pretraining. Together 36,300 steps of CLM and 93,650 of MLM, 266M
# tokens. On one core of an AMD EPYC (Zen 5, bf16, compiled), CLM runs at 16,600 tokens a second and MLM at 23,700:
# 210 core-minutes, and about 11 for evaluations and starts. Then 43 models, one of them random weights, on 3 tasks:
# 444 fine-tuning runs of 9 seconds (sst2, scifact) or 18 (conll2003): 90 core-minutes. On two cores that other work
# shared, all of it took three hours. Results: docs/results/study_small/report.md.
train = "config/openstax.py"
sizes = (("small", ""),)
out_dir = "out/study-small"

# each a budget in steps, then the steps of CLM
splits = (
    (1_200, 0, 300, 600, 1_200),
    (2_600, 0, 650, 1_300, 2_600),
    (5_000, 0, 1_250, 2_500, 5_000),
    (10_200, 0, 2_550, 5_100, 10_200),
)
lrs = (1e-3, 2e-3, 4e-3)
lr_steps = 1_000
seeds = (1, 2, 3)
repeated = (0, 300, 1_200, 650, 2_600, 1_250, 5_000, 2_550, 10_200)  # 0, 25 and 100 % of each budget
continued = (2_550,)  # a quarter of the longest budget
continue_args = "--warmup_steps=50"

# Chosen by a pilot: those on which pretraining beats random weights. Question answering is left out: after 300 steps on
# SQuAD, random weights and all pretrained models stand at 8 F1. Fine-tuning is short because random weights catch up in
# a longer one.
tasks = (
    ("sst2", "--max_steps=100 --test_examples=1000"),
    ("conll2003", "--max_steps=200 --test_examples=1000"),
    ("scifact", "--max_steps=60 --batch_size=16 --epochs=2 --full_corpus=False"),
)
finetune = "--eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)
choose_once = True
