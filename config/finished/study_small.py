# How much CLM, at which budget? A study for two CPU cores and three hours: textbooks, 1.8M parameters.
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python -m eval.study config/finished/study_small.py
#
# The model and the text are those of config/openstax.py. The files of the tasks go into data/tasks; python -m
# eval.tasks says where to get them. Tagging and retrieval were chosen by a pilot: on them pretraining beats random
# weights. SST-2, SICK, CoLA, MRPC and SQuAD are not sensitive at this size.
#
# A step has 2,048 tokens: 1,200 steps are 2.5M tokens, 2,600 steps 5.3M, 5,000 steps 10.2M, and 10,200 steps 20.9M (1.3
# epochs). A short budget branches off a longer one where its own schedule begins to differ.
#
# One learning rate, 1e-3: after 5,000 steps it is the best of four for MLM, and for CLM 0.003 nats from the best of two
# (docs/results/early.md). The published study (docs/results/early.md), made with commit 96ee8a4, has 2e-3 for CLM.
out_dir = "out/study-small"
train = "config/openstax.py"
seeds = (1, 2, 3)

# name, what it begins with, arguments of train.py
runs = (
    ("clm-21M", "", "--max_steps=10200 --switch_step=10200"),
    ("clm-10M", "clm-21M@4700", "--max_steps=5000 --switch_step=5000"),
    ("clm-5M", "clm-21M@2300", "--max_steps=2600 --switch_step=2600"),
    ("clm-2.5M", "clm-21M@900", "--max_steps=1200 --switch_step=1200"),
    ("mlm-21M", "", "--max_steps=10200 --switch_step=0"),
    ("mlm-10M", "mlm-21M@4700", "--max_steps=5000 --switch_step=0"),
    ("mlm-5M", "mlm-21M@2300", "--max_steps=2600 --switch_step=0"),
    ("mlm-2.5M", "mlm-21M@900", "--max_steps=1200 --switch_step=0"),
    ("clm25-mlm-21M", "clm-21M@2550", "--max_steps=10200 --switch_step=2550"),
    ("clm25-mlm-10M", "clm-21M@1250", "--max_steps=5000 --switch_step=1250"),
    ("clm25-mlm-5M", "clm-21M@650", "--max_steps=2600 --switch_step=650"),
    ("clm25-mlm-2.5M", "clm-21M@300", "--max_steps=1200 --switch_step=300"),
    ("clm50-mlm-21M", "clm-21M@5100", "--max_steps=10200 --switch_step=5100"),
    ("clm50-mlm-10M", "clm-21M@2500", "--max_steps=5000 --switch_step=2500"),
    ("clm50-mlm-5M", "clm-21M@1300", "--max_steps=2600 --switch_step=1300"),
    ("clm50-mlm-2.5M", "clm-21M@600", "--max_steps=1200 --switch_step=600"),
    # continued pretraining: a quarter of the longest budget
    ("clm-21M-then-mlm", "clm-21M", "--max_steps=2550 --switch_step=0 --warmup_steps=50"),
    ("mlm-21M-then-mlm", "mlm-21M", "--max_steps=2550 --switch_step=0 --warmup_steps=50"),
)
random = ("mlm-21M",)
primary = (
    ("clm25-mlm-21M", "mlm-21M"),
    ("clm25-mlm-10M", "mlm-10M"),
    ("clm25-mlm-5M", "mlm-5M"),
    ("clm25-mlm-2.5M", "mlm-2.5M"),
)

# Fine-tuning is short, because random weights catch up on tagging in a longer one. It shows how fast a model adapts.
tasks = (
    "conll2003 --max_steps=200 --test_examples=1000",
    "scifact --max_steps=60 --batch_size=16 --epochs=2 --full_corpus=False",
)
finetune = "--eval_interval=1000"
rates = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)

# kinds of figures, what is on the x-axis, the models that make a line (one: a horizontal line), its name
figures = (
    ("scores", "clm_fraction", "mlm-21M clm25-mlm-21M clm50-mlm-21M clm-21M", "20.9M tokens"),
    ("scores", "clm_fraction", "mlm-10M clm25-mlm-10M clm50-mlm-10M clm-10M", "10.2M tokens"),
    ("scores", "clm_fraction", "mlm-5M clm25-mlm-5M clm50-mlm-5M clm-5M", "5.3M tokens"),
    ("scores", "clm_fraction", "mlm-2.5M clm25-mlm-2.5M clm50-mlm-2.5M clm-2.5M", "2.5M tokens"),
    ("scores", "clm_fraction tokens flops steps_added", "random-mlm-21M", "random weights"),
    ("scores", "tokens flops", "clm-2.5M clm-5M clm-10M clm-21M", "pure CLM"),
    ("scores", "tokens flops", "mlm-2.5M mlm-5M mlm-10M mlm-21M", "pure MLM"),
    ("scores", "tokens flops", "clm25-mlm-2.5M clm25-mlm-5M clm25-mlm-10M clm25-mlm-21M", "25 % CLM, then MLM"),
    ("scores", "tokens flops", "clm50-mlm-2.5M clm50-mlm-5M clm50-mlm-10M clm50-mlm-21M", "50 % CLM, then MLM"),
    ("scores", "steps_added", "clm-21M clm-21M-then-mlm", "after pure CLM"),
    ("losses", "steps_added", "clm-21M-then-mlm", "after pure CLM"),
    ("scores", "steps_added", "mlm-21M mlm-21M-then-mlm", "after pure MLM"),
    ("losses", "steps_added", "mlm-21M-then-mlm", "after pure MLM"),
    ("losses", "step", "clm25-mlm-21M", "25 % CLM, then MLM, 20.9M tokens"),
    ("losses", "step", "mlm-21M", "pure MLM, 20.9M tokens"),
    ("losses", "step", "clm25-mlm-10M", "25 % CLM, then MLM, 10.2M tokens"),
    ("losses", "step", "mlm-10M", "pure MLM, 10.2M tokens"),
    ("losses", "step", "clm25-mlm-5M", "25 % CLM, then MLM, 5.3M tokens"),
    ("losses", "step", "mlm-5M", "pure MLM, 5.3M tokens"),
    ("losses", "step", "clm25-mlm-2.5M", "25 % CLM, then MLM, 2.5M tokens"),
)
