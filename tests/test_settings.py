"""One table of wrong settings for all scripts: each stops a run before any work, with all that is wrong."""

import re

import pytest

OWN = "--family=sc --train={tmp}/{file} --test={tmp}/{file} --init_from={encoder} --check"
TUNE = "--task=embedded-ir --init_from={encoder}"
REFUSED = [  # arguments, and what the message says of each of them
    ("train.py --model=300m --mask_ratio=1.5 --lr=0 --max_step=3 --resume --clm_windows=1 --predict_from=after",
     "model=300m: must be one of demo, 210m|mask_ratio=1.5: must be below 1|lr=0.0: must be above 0|"
     "unknown setting 'max_step'. Did you mean 'max_steps'?|--resume: write --resume=VALUE|"
     "clm_windows=1.0: must be below 1|predict_from=after: must be one of mask, before"),
    ("train.py --global_batch_tokens=100 --switch_step=21 --warmup_steps=16 --keep_steps=-5 --vocab_size=100 "
     "--n_kv_head=3 --mask_proportions=0.8,0.1 --mask_ratio=0.01 --window_split=random --seq_len=16",
     "global_batch_tokens=100: must be a multiple of seq_len = 16|vocab_size=100: the tokenizer of|"
     "max_steps=20: the schedule has 21 steps; --switch_step=10 --warmup_steps=7 --decay_steps=2 fits|"
     "n_head=4, n_kv_head=3: n_head must be a multiple of n_kv_head|keep_steps=-5: must be above 0|"
     "mask_proportions=(0.8, 0.1): must be 3 numbers with sum 1|mask_ratio=0.01: masks not one token of 16|"
     "window_split=random: needs seq_len of at least 24, got 16"),
    ("train.py --n_layer=99999999",
     "n_layer is 99,999,999: must be at most 1,000|the number of weights is 767,999,996,416: must be at most"),
    ("train.py --global_batch_tokens=3200000", "fewer than the 3200000 of one batch: give more text or a"),
    ("train.py --seq_len=8192 --global_batch_tokens=8192 --attention=reference",
     "of one window: give a smaller --seq_len, or prepare"),
    ("train.py --clm_windows=1e308 --keep_steps=1e308",
     "clm_windows takes a float below 2**63|keep_steps takes a tuple of int"),
    ("train.py --out_dir=README.md", "README.md cannot be written (File exists): give another folder"),
    (f"train.py --out_dir={'x' * 300}", "File name too long: 'xxx"),
    ("train.py --data=nowhere", "nowhere: no such folder; prepare it"),
    ("train.py --data=docs:0.5,nowhere:0.5", "docs is not a prepared folder"),
    ("train.py --init_from=nowhere.pt --branch_from=nowhere.pt",
     "give one of them|nowhere.pt is neither a checkpoint nor a folder with one: no such file"),
    ("train.py --init_from=README.md", "README.md is damaged or not a checkpoint"),
    ("train.py --max_steps=-1 --switch_step=0 --warmup_steps=0 --decay_steps=0", "max_steps=-1: must be at least 1"),
    ("train.py --seq_len=1", "seq_len=1: must be at least 2"),
    ("train.py --attention=triton --device=cpu", "attention=triton: "),
    ("train.py --model=origin", "model=origin: give init_from or branch_from"),
    ("train.py --device=cuda", "device=cuda: this is process 99, but there are"),
    ("train.py --branch_from={ckpt} --max_steps=19", "max_steps=19: {ckpt} is at step 20"),
    ("train.py --branch_from={ckpt} --n_layer=3",
     "{ckpt}: n_layer is 2, here 3 (--model=origin takes the shape of what the run starts from)"),
    ("train.py --branch_from={ckpt} --optimizer=muon",
     "optimizer=muon: that of {ckpt} is adamw. init_from takes its weights only"),
    ("finetune.py --lr=0 --seed=1e308 --max_steps=-1 --dropout=1 --dtype=float16 --family=xx --init_from=nowhere",
     "lr=0.0: must be above 0|max_steps=-1: must be at least 0|dropout=1.0: must be below 1|dtype=float16: must be|"
     "family='xx'|nowhere is neither a checkpoint|--seed=1e308: seed takes an int"),
    (f"finetune.py {TUNE} --freeze=True", "retrieval has no head of its own to train"),
    (f"finetune.py {OWN.replace('{file}', 'no.csv')}", "missing:\n  {tmp}/no.csv\n"),
    (f"finetune.py {OWN.replace('{file}', 'odd.csv')}",
     "odd.csv, line 1: no column 'text'; the columns are ['text;label']"),
    (f"finetune.py {TUNE} --out_dir={{tmp}}/model", "already holds a model"),
    (f"finetune.py {TUNE} --out_dir={{tmp}}/result", "already holds a result"),
]  # fmt: skip


@pytest.mark.parametrize("command, problems", REFUSED, ids=[f"{command:.60}" for command, _ in REFUSED])
def test_wrong_settings_are_told_before_any_work(undisturbed, run, encoder, tmp_path, command, problems):
    tiny, reference = undisturbed
    places = dict(tmp=tmp_path, encoder=encoder, ckpt=reference / "ckpt-20.pt")
    (tmp_path / "odd.csv").write_text("text;label\nx;1\n")
    for folder, file in ("model", "config.json"), ("result", "result.json"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    script, *args = command.format(**places).split()
    before = [*tiny, f"--out_dir={tmp_path / 'run'}"] if script == "train.py" else [f"--out_dir={tmp_path / 'run'}"]
    code, text = run([*before, *args], script, LOCAL_RANK="99")
    assert code in (1, 2) and "Traceback" not in text, text
    for problem in problems.format(**places).split("|"):
        assert problem in text
    assert code == 1 or len(re.findall(r"^  \d+\. ", text, re.M)) == len(problems.split("|")), text
    assert not (tmp_path / "run").exists()
