# A real study for two CPU cores and a working day: textbooks and novels, a model of 4.7M parameters.
#
#   python -m data.train_bpe --source=texts/ --vocab_size=8192 --out=texts.tiktoken
#   python -m data.prepare --source=texts/ --tokenizer=texts.tiktoken --val_fraction=0.02 --out=data/prepared/textbooks
#   python -m eval.study config/study_small.py
#
# texts/ has 47 MB of OpenStax textbooks and 69 MB of novels from 1780 to 1928, 28.5M tokens. A budget of 1,200 steps of
# 4,096 tokens is 4.9M of them, a sixth of an epoch. Results: docs/results/study_small/.
# With a C++ compiler, --compile=True in `train` makes the steps of CLM 1.4 times as fast (two cores of an Intel Xeon).
train = "--data=data/prepared/textbooks --seq_len=256 --warmup_steps=100 --decay_steps=240 --eval_interval=100 --checkpoint_interval=200"
sizes = (("small", "--n_layer=4 --n_head=3 --n_kv_head=1 --d_model=192 --d_ff=512"),)
out_dir = "out/study-small"

# each a budget in steps, then the steps of CLM
splits = (
    (600, 0, 300, 600),
    (1_200, 0, 300, 600, 900, 1_200),
)
lrs = (1e-3, 2e-3, 4e-3)
lr_steps = 400
seeds = (1, 2, 3)
repeated = (0, 300, 600, 1_200)
continued = (300,)
continue_args = "--warmup_steps=50"

tasks = (
    ("sst2", "--max_steps=200"),
    ("wnut17", "--max_steps=300 --epochs=3"),
    ("squad", "--max_steps=100 --batch_size=16 --eval_examples=50 --test_examples=300"),
    ("scifact", "--max_steps=80 --batch_size=16 --epochs=2 --full_corpus=False"),
)
finetune = "--eval_interval=1000"
finetune_lrs = (1e-3, 3e-3)
finetune_seeds = (1, 2, 3)
choose_once = True
