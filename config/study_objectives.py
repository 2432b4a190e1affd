# Which of the field's objectives helps a small encoder? A study for two CPU cores and two hours.
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python -m eval.study config/study_objectives.py
#
# The model and the text are those of config/openstax.py. The files of the three tasks go into data/tasks; python -m
# eval.tasks says where to get them. All models get 5,000 steps of 2,048 tokens. Pure CLM is trained too, because two
# others begin with its first steps. Results: docs/objectives.md.
#
# What it trains: for each of 3 seeds, 5,000 steps of CLM, of MLM, of both mixtures and of falling mask ratios, and
# 3,750 steps after 25 % CLM, twice: 32,500 steps. To choose learning rates, 6 * 3 runs of 1,000 steps. Together 115,500
# steps, at about 10 a second on one core of an AMD EPYC (Zen 5, bf16, compiled): 195 core-minutes. Then 22 models, one
# of them random weights, on 3 tasks: 222 fine-tuning runs of 9 seconds (sst2, scifact) or 18 (conll2003): 45
# core-minutes. All of it: about 240 core-minutes, two hours of two cores.
train = "config/openstax.py"
sizes = (("small", ""),)
out_dir = "out/study-objectives"

splits = ((5_000, 0, 1_250, 5_000),)  # the budget in steps, then the steps of CLM
variants = (
    ("mixed 1:1", "--clm_windows=0.5"),  # CLM : MLM, in windows
    ("mixed 1:3", "--clm_windows=0.25"),
    ("mask 40 to 10 %", "--mask_ratio=0.4,0.1"),
    ("MNTP after 25 % CLM", "--switch_step=1250 --predict_from=before"),  # masked next-token prediction
)
lrs = (1e-3, 2e-3, 4e-3)
lr_steps = 1_000
seeds = (1, 2, 3)

# Fine-tuning is short, because random weights catch up in a longer one.
tasks = (
    ("sst2", "--max_steps=100 --test_examples=1000"),
    ("conll2003", "--max_steps=200 --test_examples=1000"),
    ("scifact", "--max_steps=60 --batch_size=16 --epochs=2 --full_corpus=False"),
)
finetune = "--eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)
choose_once = True
