# Continued pretraining: turn an existing decoder into an encoder by masked language modeling.
#
#   python train.py config/continue.py --init_from=SmolLM2-135M --data=data/prepared/fineweb-edu-smollm2
#
# init_from is a checkpoint or a model folder of the hub. It gives the shape and the weights. The optimizer is new, so
# the learning rate warms up again, stays constant, and decays to 0. For comparison, the same from an MLM model:
#
#   python train.py config/continue.py --init_from=out/610m-mlm40-42k --out_dir=out/610m-mlm40-dec42k-mlm40-54k
#
# The paper has 610M models after 42k steps. After 12k more steps of MLM, the CLM model passes the MLM model that
# gets the same steps: SC 87.8 and 87.6, TC 92.8 and 92.3, IR 80.3 and 79.9. On QA it does not: 63.2 and 66.6, and after
# 22k steps 66.6 and 67.7. After 2k steps it is behind on all but TC. The paper does not state the learning rate of
# these steps. This preset takes that of its pretraining.
#
# For a hub decoder that was trained on trillions of tokens, we know of no study that says how many steps are enough.
# Set max_steps and global_batch_tokens to your own budget.
base = "610m.py"  # the same data, batches and optimizer
model = "origin"
init_from = "out/610m-clm-42k/ckpt-42000.pt"
out_dir = "out/610m-clm-dec42k-mlm40-54k"
seq_len = 2_048
seed = 2  # with the seed of the run it continues, the batches and masks would be the same again
max_steps = 12_000  # * 2,359,296 = 28.3B tokens, 29 % of the 42k steps before
warmup_steps = 500

eval_interval = 500
keep_steps = ()
