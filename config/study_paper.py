# The study of arXiv 2507.00994: three sizes, three budgets, five fractions of CLM, four mask ratios, continued
# pretraining.
#
#   python -m eval.study config/study_paper.py --plan     # 110k hours of an MI250X in the paper
#
# docs/study.md shows how a cluster runs it.
#
# 39 final models and 12 intermediate ones: 51 models, each with 10 tasks * 6 learning rates * 5 seeds = 300
# fine-tuning runs: 15,300, and 900 of random weights. The paper counts 38 models and 15,000 runs, without the model
# 1b-clm-10k-mlm40-42k of its figure 11. The names are those of the paper's models on the hub.
train = "config/610m.py"
processes = 8
out_dir = "out/study-paper"

# name, what it begins with, arguments of train.py
runs = (
    ("610m-clm-42k", "", "--switch_step=42000"),
    ("610m-mlm40-42k", "", ""),
    ("610m-clm-10k-mlm40-42k", "610m-clm-42k@10000", "--switch_step=10000"),
    ("610m-clm-21k-mlm40-42k", "610m-clm-42k@21000", "--switch_step=21000"),
    ("610m-clm-32k-mlm40-42k", "610m-clm-42k@32000", "--switch_step=32000"),
    # a shorter budget branches off the longest one where its own learning rate begins to decay
    ("610m-clm-22k", "610m-clm-42k@20000", "--max_steps=22000 --switch_step=22000"),
    ("610m-mlm40-22k", "610m-mlm40-42k@20000", "--max_steps=22000"),
    ("610m-clm-5k-mlm40-22k", "610m-clm-42k@5000", "--max_steps=22000 --switch_step=5000"),
    ("610m-clm-11k-mlm40-22k", "610m-clm-42k@11000", "--max_steps=22000 --switch_step=11000"),
    ("610m-clm-17k-mlm40-22k", "610m-clm-42k@17000", "--max_steps=22000 --switch_step=17000"),
    ("610m-clm-12k", "610m-clm-42k@10000", "--max_steps=12000 --switch_step=12000"),
    ("610m-mlm40-12k", "610m-mlm40-42k@10000", "--max_steps=12000"),
    ("610m-clm-3k-mlm40-12k", "610m-clm-42k@3000", "--max_steps=12000 --switch_step=3000"),
    ("610m-clm-6k-mlm40-12k", "610m-clm-42k@6000", "--max_steps=12000 --switch_step=6000"),
    ("610m-clm-9k-mlm40-12k", "610m-clm-42k@9000", "--max_steps=12000 --switch_step=9000"),
    # other mask ratios
    ("610m-mlm20-42k", "", "--mask_ratio=0.2"),
    ("610m-mlm30-42k", "", "--mask_ratio=0.3"),
    ("610m-mlm50-42k", "", "--mask_ratio=0.5"),
    ("610m-clm-40k-mlm20-42k", "610m-clm-42k@40000", "--switch_step=40000 --mask_ratio=0.2"),
    ("610m-clm-40k-mlm30-42k", "610m-clm-42k@40000", "--switch_step=40000 --mask_ratio=0.3"),
    ("610m-clm-40k-mlm40-42k", "610m-clm-42k@40000", "--switch_step=40000"),
    ("610m-clm-40k-mlm50-42k", "610m-clm-42k@40000", "--switch_step=40000 --mask_ratio=0.5"),
    # continued pretraining. The paper does not state the learning rate: this is that of pretraining, warmed up again
    ("610m-clm-dec42k-mlm40-44k", "610m-clm-42k", "--max_steps=2000 --warmup_steps=500 --decay_steps=1500"),
    ("610m-clm-dec42k-mlm40-64k", "610m-clm-42k", "--max_steps=22000 --warmup_steps=500"),
    ("610m-clm-dec42k-mlm40-54k", "610m-clm-dec42k-mlm40-64k@10000", "--max_steps=12000 --warmup_steps=500"),
    ("610m-mlm40-dec42k-mlm40-44k", "610m-mlm40-42k", "--max_steps=2000 --warmup_steps=500 --decay_steps=1500"),
    ("610m-mlm40-dec42k-mlm40-64k", "610m-mlm40-42k", "--max_steps=22000 --warmup_steps=500"),
    ("610m-mlm40-dec42k-mlm40-54k", "610m-mlm40-dec42k-mlm40-64k@10000", "--max_steps=12000 --warmup_steps=500"),
    # other sizes
    ("210m-clm-42k", "", "config/210m.py --switch_step=42000"),
    ("210m-mlm20-42k", "", "config/210m.py --mask_ratio=0.2"),
    ("210m-mlm30-42k", "", "config/210m.py --mask_ratio=0.3"),
    ("210m-mlm40-42k", "", "config/210m.py"),
    ("210m-mlm50-42k", "", "config/210m.py --mask_ratio=0.5"),
    ("1b-clm-42k", "", "config/1b.py --switch_step=42000"),
    ("1b-mlm20-42k", "", "config/1b.py --mask_ratio=0.2"),
    ("1b-mlm30-42k", "", "config/1b.py --mask_ratio=0.3"),
    ("1b-mlm40-42k", "", "config/1b.py"),
    ("1b-mlm50-42k", "", "config/1b.py --mask_ratio=0.5"),
    ("1b-clm-10k-mlm40-42k", "1b-clm-42k@10000", "config/1b.py --switch_step=10000"),
)
also = ("610m-clm-42k@1000 2000 5000 10000 20000 40000", "610m-mlm40-42k@1000 2000 5000 10000 20000 40000")
random = ("610m-mlm40-42k", "210m-mlm40-42k", "1b-mlm40-42k")
# The paper names no comparison beforehand. These are its main ones: CLM followed by MLM against pure MLM.
primary = (
    ("610m-clm-10k-mlm40-42k", "610m-mlm40-42k"),
    ("610m-clm-21k-mlm40-42k", "610m-mlm40-42k"),
    ("610m-clm-32k-mlm40-42k", "610m-mlm40-42k"),
    ("610m-clm-dec42k-mlm40-64k", "610m-mlm40-dec42k-mlm40-64k"),
)

tasks = (
    "sst2",
    "qqp",
    "mnli",
    "conll2003",
    "ontonotes",
    "uner",
    "squad",
    "squad_v2",
    "record",
    "msmarco --full_corpus=False",
)
metrics = "paper"
rates = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
finetune_seeds = (1, 2, 3, 4, 5)
full_grid = True

# kinds of figures, what is on the x-axis, the models that make a line (one: a horizontal line), its name
figures = (
    (
        "scores stability",
        "clm_fraction",
        "610m-mlm40-42k 610m-clm-10k-mlm40-42k 610m-clm-21k-mlm40-42k "
        "610m-clm-32k-mlm40-42k 610m-clm-40k-mlm40-42k 610m-clm-42k",
        "610M, 40 % masked, 99B tokens",
    ),
    (
        "scores stability",
        "clm_fraction",
        "610m-mlm40-22k 610m-clm-5k-mlm40-22k 610m-clm-11k-mlm40-22k 610m-clm-17k-mlm40-22k 610m-clm-22k",
        "610M, 40 % masked, 52B tokens",
    ),
    (
        "scores stability",
        "clm_fraction",
        "610m-mlm40-12k 610m-clm-3k-mlm40-12k 610m-clm-6k-mlm40-12k 610m-clm-9k-mlm40-12k 610m-clm-12k",
        "610M, 40 % masked, 28B tokens",
    ),
    ("scores stability", "clm_fraction", "610m-mlm20-42k 610m-clm-40k-mlm20-42k", "610M, 20 % masked, 99B tokens"),
    ("scores stability", "clm_fraction", "610m-mlm30-42k 610m-clm-40k-mlm30-42k", "610M, 30 % masked, 99B tokens"),
    ("scores stability", "clm_fraction", "610m-mlm50-42k 610m-clm-40k-mlm50-42k", "610M, 50 % masked, 99B tokens"),
    ("scores stability", "clm_fraction", "210m-mlm40-42k 210m-clm-42k", "210M, 40 % masked, 99B tokens"),
    ("scores stability", "clm_fraction", "1b-mlm40-42k 1b-clm-10k-mlm40-42k 1b-clm-42k", "1B, 40 % masked, 99B tokens"),
    ("scores stability", "clm_fraction mask_ratio", "random-610m-mlm40-42k", "random weights, 610M"),
    ("scores stability", "clm_fraction mask_ratio", "random-210m-mlm40-42k", "random weights, 210M"),
    ("scores stability", "clm_fraction mask_ratio", "random-1b-mlm40-42k", "random weights, 1B"),
    ("scores", "tokens flops", "610m-clm-12k 610m-clm-22k 610m-clm-42k", "pure CLM"),
    ("scores", "tokens flops", "610m-mlm40-12k 610m-mlm40-22k 610m-mlm40-42k", "pure MLM"),
    (
        "scores",
        "tokens flops",
        "610m-clm-3k-mlm40-12k 610m-clm-5k-mlm40-22k 610m-clm-10k-mlm40-42k",
        "25 % CLM, then MLM",
    ),
    (
        "scores",
        "tokens flops",
        "610m-clm-6k-mlm40-12k 610m-clm-11k-mlm40-22k 610m-clm-21k-mlm40-42k",
        "50 % CLM, then MLM",
    ),
    (
        "scores",
        "tokens flops",
        "610m-clm-9k-mlm40-12k 610m-clm-17k-mlm40-22k 610m-clm-32k-mlm40-42k",
        "75 % CLM, then MLM",
    ),
    (
        "scores",
        "tokens flops",
        "610m-clm-42k@1000 610m-clm-42k@2000 610m-clm-42k@5000 "
        "610m-clm-42k@10000 610m-clm-42k@20000 610m-clm-42k@40000",
        "pure CLM, on the way",
    ),
    (
        "scores",
        "tokens flops",
        "610m-mlm40-42k@1000 610m-mlm40-42k@2000 610m-mlm40-42k@5000 "
        "610m-mlm40-42k@10000 610m-mlm40-42k@20000 610m-mlm40-42k@40000",
        "pure MLM, on the way",
    ),
    ("scores", "tokens flops steps_added", "random-610m-mlm40-42k", "random weights"),
    ("scores", "parameters", "210m-clm-42k 610m-clm-42k 1b-clm-42k", "pure CLM"),
    ("scores", "parameters", "610m-clm-10k-mlm40-42k 1b-clm-10k-mlm40-42k", "25 % CLM, then MLM, 40 % masked"),
    ("scores", "parameters", "210m-mlm20-42k 610m-mlm20-42k 1b-mlm20-42k", "pure MLM, 20 % masked"),
    ("scores", "parameters", "210m-mlm30-42k 610m-mlm30-42k 1b-mlm30-42k", "pure MLM, 30 % masked"),
    ("scores", "parameters", "210m-mlm40-42k 610m-mlm40-42k 1b-mlm40-42k", "pure MLM, 40 % masked"),
    ("scores", "parameters", "210m-mlm50-42k 610m-mlm50-42k 1b-mlm50-42k", "pure MLM, 50 % masked"),
    ("scores", "parameters", "random-210m-mlm40-42k random-610m-mlm40-42k random-1b-mlm40-42k", "random weights"),
    ("scores stability", "mask_ratio", "610m-mlm20-42k 610m-mlm30-42k 610m-mlm40-42k 610m-mlm50-42k", "610M, pure MLM"),
    ("scores stability", "mask_ratio", "210m-mlm20-42k 210m-mlm30-42k 210m-mlm40-42k 210m-mlm50-42k", "210M, pure MLM"),
    ("scores stability", "mask_ratio", "1b-mlm20-42k 1b-mlm30-42k 1b-mlm40-42k 1b-mlm50-42k", "1B, pure MLM"),
    (
        "scores stability",
        "mask_ratio",
        "610m-clm-40k-mlm20-42k 610m-clm-40k-mlm30-42k 610m-clm-40k-mlm40-42k 610m-clm-40k-mlm50-42k",
        "610M, 95 % CLM, then MLM",
    ),
    (
        "scores",
        "steps_added",
        "610m-clm-42k 610m-clm-dec42k-mlm40-44k 610m-clm-dec42k-mlm40-54k 610m-clm-dec42k-mlm40-64k",
        "after CLM",
    ),
    (
        "losses",
        "steps_added",
        "610m-clm-dec42k-mlm40-64k 610m-clm-dec42k-mlm40-54k 610m-clm-dec42k-mlm40-44k",
        "after CLM",
    ),
    (
        "scores",
        "steps_added",
        "610m-mlm40-42k 610m-mlm40-dec42k-mlm40-44k 610m-mlm40-dec42k-mlm40-54k 610m-mlm40-dec42k-mlm40-64k",
        "after MLM",
    ),
    (
        "losses",
        "steps_added",
        "610m-mlm40-dec42k-mlm40-64k 610m-mlm40-dec42k-mlm40-54k 610m-mlm40-dec42k-mlm40-44k",
        "after MLM",
    ),
    ("losses", "step", "610m-mlm40-42k", "pure MLM"),
    ("losses", "step", "610m-clm-10k-mlm40-42k", "24 % CLM, then MLM"),
    ("losses", "step", "610m-clm-21k-mlm40-42k", "50 % CLM, then MLM"),
    ("losses", "step", "610m-clm-32k-mlm40-42k", "76 % CLM, then MLM"),
)
