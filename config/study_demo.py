# A study on what every Python installation carries: no download, no GPU.
#
#   python -m eval.study config/study_demo.py
#
# Three models of 1.7M parameters train for 650 steps of 4,096 tokens each. The one that switches shares its first 325
# steps with the CLM model. Then 4 models (one has random weights) * 4 tasks * 2 learning rates * 2 seeds = 64
# fine-tuning runs. 17 minutes on two cores of an AMD EPYC.
train = "config/demo.py"
sizes = (("demo", ""),)
out_dir = "out/study-demo"
splits = ((650, 0, 325, 650),)
lrs = (3e-3,)

tasks = (("embedded-sc", ""), ("embedded-tc", ""), ("embedded-qa", ""), ("embedded-ir", ""))
finetune = "--max_steps=120 --epochs=4 --eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2)
