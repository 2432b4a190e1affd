# What the small studies have in common: model and text, tasks and fine-tuning. Each adds its own table of models:
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python -m eval.study config/study_tasks.py config/study_small.py
#
# The model and the text are those of config/openstax.py. The files of the tasks go into data/tasks; python -m
# eval.tasks says where to get them. Tagging and retrieval were chosen by a pilot: on them pretraining beats random
# weights. SST-2, SICK, CoLA, MRPC and SQuAD did not react at this size.
train = "config/openstax.py"
seeds = (1, 2, 3)

# Fine-tuning is short, because random weights catch up in a longer one: how fast a model adapts.
tasks = (
    "conll2003 --max_steps=200 --test_examples=1000",
    "scifact --max_steps=60 --batch_size=16 --epochs=2 --full_corpus=False",
)
finetune = "--eval_interval=1000"
rates = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)
