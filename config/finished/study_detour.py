# The detour on a CPU: an encoder of old books is continued on science textbooks, and searches scientific abstracts.
# docs/results/study_detour.md has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_detour.py
#
# Model and tasks are those of the small studies, at width 128.
out_dir = "out/study-detour"
train = (
    "config/openstax.py --data=data/prepared/openstax-books --lr=1e-3 "
    "--max_steps=1250 --warmup_steps=50 --decay_steps=125"
)
seeds = (30, 31, 32)

# name, what it begins with, arguments of train.py
runs = (
    (
        "books",
        "",
        "--data=data/prepared/books --switch_step=0 --max_steps=5000 --warmup_steps=100 --decay_steps=300 --lr=2e-3 "
        "--mask_proportions=0.8,0.1,0.1",
    ),
    ("mlm", "books", "--switch_step=0"),
    ("detour", "books", "--switch_step=1125"),
    ("mntp", "books", "--switch_step=0 --predict_from=before"),
)
primary = (("detour", "mlm"), ("mntp", "mlm"))

tasks = ("scifact --max_steps=240 --batch_size=16 --epochs=6 --full_corpus=False",)
finetune = "--eval_interval=1000 --baseline=False"
rates = (1e-3, 2e-3, 4e-3)
finetune_seeds = (1, 2)
