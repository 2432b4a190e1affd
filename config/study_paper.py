# The study of arXiv 2507.00994: three sizes, three budgets, five splits, four mask ratios, continued pretraining.
#
#   python -m eval.study config/study_paper.py --plan
#   python -m eval.study config/study_paper.py --slurm     # 110k hours of an MI250X in the paper
#
# 19 models of one objective (15, and 4 at the budgets 12k and 22k) + 14 splits (9, 4 late, 1 of 1B) + 6 continued = 39
# final models, and 12 intermediate ones: 51 models, each with 10 tasks * 6 learning rates * 5 seeds = 300 fine-tuning
# runs: 15,300. The paper counts 38 and 15,000, without the split of the 1B model in its figure 11.
# The first size has all splits, the others the pure objectives, and the 1B model 10,000 steps of CLM followed by MLM.
sizes = (("610m", "config/610m.py"), ("210m", "config/210m.py"), ("1b", "config/1b.py", "10000"))
out_dir = "out/study-paper"
processes = 8

# each a budget in steps, then the steps of CLM: about 0, 25, 50, 75 and 100 %
splits = (
    (12_000, 0, 3_000, 6_000, 9_000, 12_000),
    (22_000, 0, 5_000, 11_000, 17_000, 22_000),
    (42_000, 0, 10_000, 21_000, 32_000, 42_000),
)
mask_ratios = (0.4, 0.2, 0.3, 0.5)
late_switch = 40_000
lrs = (5e-4,)
intermediate = (1_000, 2_000, 5_000, 10_000, 20_000, 40_000)

# The paper does not state the learning rate of continued pretraining; this is that of its pretraining, warmed up again.
continued = (2_000, 12_000, 22_000)
continue_args = "--warmup_steps=500"

tasks = (
    ("sst2", ""),
    ("qqp", ""),
    ("mnli", ""),
    ("conll2003", ""),
    ("ontonotes", ""),
    ("uner", ""),
    ("squad", ""),
    ("squad_v2", ""),
    ("record", ""),
    ("msmarco", "--full_corpus=False"),
)
metrics = "paper"
finetune_lrs = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
finetune_seeds = (1, 2, 3, 4, 5)
