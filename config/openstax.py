# A small encoder on textbooks, for a CPU: the model and text of the small studies. 25 % CLM, then MLM.
#
#   python -m data.prepare --source=openstax/ --out=data/prepared/openstax
#   python train.py config/openstax.py
#
# openstax/ has 47 MB of OpenStax textbooks (CC BY 4.0) as .txt files: 16.2M tokens of the embedded tokenizer. The run
# takes about ten minutes on one core of an AMD EPYC (Zen 5, bf16).
#
# 4 layers of width 128, as in the demo, with an MLP of 384: 0.8M parameters in the blocks, 1.8M with the embedding and
# the output head.
d_ff = 384
data = "data/prepared/openstax"
out_dir = "out/openstax"

# 16 windows * 128 tokens = 2,048 tokens per step. With few tokens per step, MLM leaves its slow start sooner.
global_batch_tokens = 2_048
max_steps = 5_000  # * 2,048 = 10.2M tokens
switch_step = 1_250
lr = 1e-3
warmup_steps = 100
decay_steps = 300

log_interval = 20
eval_interval = 400
eval_windows = 128
checkpoint_interval = 300
compile = True  # needs a C++ compiler; without it, training takes 1.3 times as long
