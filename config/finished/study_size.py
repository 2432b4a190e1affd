# Size: is the lead of a CLM phase smaller in a wider model? Two recipes at width 192, 5,000 steps as at width 128.
# docs/results/study_cause has the design, which was committed before the runs.
#
#   python -m eval.study config/finished/study_size.py
#
# 3 heads of 64, 1 key and value head: 3.3M parameters with the output head. 4,608 tokens a step, 23M tokens in all,
# which is 13 tokens for each parameter of the blocks, as at width 128.
base = "study_cause.py"  # the same tasks and fine-tuning seeds
out_dir = "out/study-size"
train = (
    "config/openstax.py --n_head=3 --n_kv_head=1 --d_model=192 --d_ff=576 --global_batch_tokens=4608 --switch_step=0 "
    "--eval_interval=100 --checkpoint_interval=1000 --dtype=float32"
)
seeds = (9, 10, 11)

# name, what it begins with, arguments of train.py. The rates are those that the trials on seed 0 choose.
runs = (
    ("mlm-192", "", "--lr=1e-3"),
    ("clm25-mlm-192", "", "--switch_step=1250 --lr=2e-3"),
)
rates = (2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3)
primary = (("clm25-mlm-192", "mlm-192"),)
figures = ()
