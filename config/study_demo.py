# A study on what every Python installation carries: no download, no GPU.
#
#   python eval/study.py config/study_demo.py
#
# Three models of 1.7M parameters, 650 steps of 4,096 tokens each, of which the one that switches takes 325 from the
# CLM model; then 4 models (one is untrained) * 4 tasks * 2 learning rates * 2 seeds = 64 fine-tunings.
# 20 minutes on two cores of an Intel Xeon.
train = "config/demo.py"
sizes = (("demo", ""),)
out_dir = "out/study-demo"
splits = ((650, 0, 325, 650),)
lrs = (3e-3,)

tasks = (("embedded-sc", ""), ("embedded-tc", ""), ("embedded-qa", ""), ("embedded-ir", ""))
finetune = "--max_steps=120 --epochs=4 --eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2)
