"""The promises about a run: it resumes bit for bit, and the world size does not change it."""

import json
import os
import random
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch

import checkpoint
from data.files import lock_folder
from data.objective import clm_steps
from errors import DataError, stop_signals
from conftest import prepared
from helpers import (
    ROOT, UNUSED, Run, assert_same_end, assert_same_losses, copy_up_to, flip_bit, metrics, succeed,
)  # fmt: skip
from run import last_logged, read_metrics


SLOW = pytest.mark.slow


def train_after(folder, code):
    """Return the path of a script that executes code, then train.py."""
    path = folder / "script.py"
    path.write_text(f'{code}\nimport runpy\nrunpy.run_path("train.py", run_name="__main__")\n')
    return str(path)


@pytest.mark.parametrize("warmup, decay, expected", [
    (4, 2, [2, 4, 6, 8, 8, 8, 8, 8, 8, 4]), (0, 0, [8] * 10), (8, 8, [1, 2, 3, 4, 5, 5, 4, 3, 2, 1]),
])  # fmt: skip
def test_the_learning_rate(warmup, decay, expected):
    """Computed by hand: linear warmup, constant, linear decay, in ten steps with the peak at 8."""
    learning_rate = runpy.run_path(str(ROOT / "train.py"))["learning_rate"]
    cfg = SimpleNamespace(lr=8.0, warmup_steps=warmup, decay_steps=decay, max_steps=10)
    assert [learning_rate(step, cfg) for step in range(10)] == pytest.approx(expected)


def test_a_run_learns_and_reports(undisturbed):
    args, out = undisturbed
    lines = read_metrics(out)
    assert [line["step"] for line in lines] == list(range(21))
    assert [line["phase"] for line in lines] == ["clm"] * 9 + ["mlm"] * 12
    assert [line["step"] for line in lines if "val_clm_loss" in line] == [0, 8, 10, 20]
    every = {"step", "phase", "tokens", "seconds", "flops"}
    assert lines[0].keys() == every | {"val_clm_loss", "val_mlm_loss"} and lines[0]["flops"] == 0
    assert lines[1].keys() == every | {"loss", "grad_norm", "lr", "tokens_per_s"}
    assert lines[-2].keys() == lines[1].keys() | {"mask_ratio"} and lines[-2]["mask_ratio"] == 0.4
    assert [line["tokens"] for line in lines] == [512 * s for s in range(21)]
    warmup, constant, decay = [1e-3, 2e-3], [3e-3] * 13, [3e-3 * n / 5 for n in (5, 4, 3, 2, 1)]
    assert [line["lr"] for line in lines[1:]] == pytest.approx(warmup + constant + decay)
    assert [line["step"] for line in lines[1:] if line["tokens_per_s"] is None] == [1, 9]  # a phase's first compiles
    assert lines[-1]["val_mlm_loss"] < lines[0]["val_mlm_loss"] - 1
    facts = json.loads((out / "config.json").read_text())
    assert facts["settings"]["max_steps"] == 20 and facts["model"]["d_model"] == 32
    assert "def main" in (out / "source" / "train.py").read_text()
    text = (out.parent / "output").read_text()
    assert "10,240 tokens in 20 steps" in text and f"\ncheckpoint: {out}/ckpt-20.pt\n" in text, text
    assert len(re.findall(r"^step (8|10|20) \((CLM|MLM)\): validation loss CLM .*, MLM ", text, re.M)) == 3, text
    for moment in ("at step 8, the end of CLM", "at step 20, the end of MLM"):
        assert re.search(moment + r"\n  filled in.*\n(    .*\n){4}  continued.*\n(    .*\n){3}", text), text


# --- Other objectives, another optimizer ---

# Arguments, and the largest relative difference between world sizes. A single window of CLM leaves none to one process.
OTHERS = [
    ("--clm_windows=0.0625 --mask_ratio=0.3 --predict_from=before --window_split=document --shard=True", 1e-5),
    ("--data={mixture} --window_split=random --switch_step=0 --clm_windows=0.0625", 1e-5),
    pytest.param("--optimizer=muon --shard=True", 1e-3, marks=SLOW),  # its iteration is in bf16
]


@pytest.mark.parametrize("options, difference", OTHERS)
def test_other_objectives_optimizers_and_data_keep_the_promises(
    run, run_world, mixture, tiny, tmp_path, options, difference
):
    """Resumed, in the mixture in each phase, the end is the same bit for bit; on two processes to rounding."""
    args = [*tiny, *options.format(mixture=mixture).split()]
    succeed([run([*args, f"--out_dir={tmp_path / 'reference'}"])])
    lines = read_metrics(tmp_path / "reference")
    loss = "val_mntp_loss" if "before" in options else "val_mlm_loss"
    assert lines[-1][loss] < lines[0][loss] - 0.5
    out = copy_up_to(10, tmp_path / "reference", tmp_path / "resumed")
    succeed([run([*args, f"--out_dir={out}", "--resume=True"])])
    assert_same_end(tmp_path / "reference", out, 20)
    out = tmp_path / "two"
    succeed(run_world(2, [*args, f"--out_dir={out}", "--micro_batch=3"]))
    assert_same_losses(out, tmp_path / "reference", difference, also=())


def test_a_mixture_counts_exactly(run, tiny, tmp_path):
    """16 windows of 32 tokens a step. The loss is the mean over all predicted tokens of both kinds."""
    out = tmp_path / "run"
    succeed([run([*tiny, "--clm_windows=0.25", "--mask_ratio=0.25", "--max_steps=17", f"--out_dir={out}"])])
    lines = [line for line in read_metrics(out) if line["phase"] == "clm + mlm" and "loss" in line]
    assert [line["step"] for line in lines] == [*range(9, 18)]
    for line in lines:
        assert line["mask_ratio"] == 0.25
        clm = 4 * 31 / (4 * 31 + 12 * 8)  # of the predicted tokens; a little more, as MLM predicts no special tokens
        mean, gap = clm * line["clm_loss"] + (1 - clm) * line["mlm_loss"], abs(line["clm_loss"] - line["mlm_loss"])
        assert line["loss"] == pytest.approx(mean, abs=0.02 * gap + 1e-6)
    phases = checkpoint.load(checkpoint.path_of(out, 17))["phases"]
    assert [(its["phase"], its["steps"]) for its in phases] == [("clm", 8), ("clm + mlm", 9)]
    assert clm_steps(phases) == 8 + 2.25 and phases[1]["objectives"]["mlm"]["mask_ratio"] == [0.25, 0.25, 0.25]


# --- Starting, stopping, going on ---


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2, 3))])
def test_killed_at_random_moments(undisturbed, run, tmp_path, seed):
    """SIGKILL in the middle of a save, then at a random moment; the end is the same, bit for bit."""
    (args, reference), out, rng = undisturbed, tmp_path / "run", random.Random(seed)
    args = [*args, f"--out_dir={out}", "--resume=True", "--checkpoint_interval=2", "--keep_last=3"]
    for partial in True, False:
        attempt, aim = Run(args, tmp_path / "output"), max(checkpoint.steps(out), default=0) + rng.randrange(8)
        if partial:
            attempt.until(lambda: list(out.glob("ckpt*.partial")))
        else:
            attempt.until(lambda: max(checkpoint.steps(out), default=0) >= aim)
            time.sleep(rng.uniform(0, 0.03))
        attempt.process.kill()
        attempt.process.join()
        assert not partial or list(out.glob("ckpt-*.partial")), "the kill did not hit the save"
        assert 20 not in checkpoint.steps(out), "the run ended before the kill"
    succeed([run(args)])
    assert_same_end(reference, out, 20)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=SLOW)])
def test_a_signal_saves_and_says_how_to_continue(undisturbed, run, tmp_path, number):
    """While a process trains, no other one writes to its folder; what runs after it goes on from its last step."""
    args, reference = undisturbed
    out = tmp_path / "run"
    args = [*args, f"--out_dir={out}", "--resume=True"]
    attempt = Run(args, tmp_path / "output")
    attempt.until(lambda: last_logged(out) >= 3)
    with pytest.raises(DataError, match=f"in use by process {attempt.process.pid} on"):
        lock_folder(out, shared=True)
    os.kill(attempt.process.pid, number)
    code, text = attempt.wait()
    step = int(re.search(r"Stopped at step (\d+) of 20. Steps with checkpoints: .*\1\]\.\n.*--resume=True", text)[1])
    assert code == 128 + number and 0 < step < 20 and step in checkpoint.steps(out)
    before = metrics(out)
    with lock_folder(out, shared=True):
        code, text = run(args)
    assert code == 1 and f"in use by process {os.getpid()} on" in text and metrics(out) == before, text
    succeed([run(args)])
    assert_same_end(reference, out)


def test_nohup_is_respected(monkeypatch):
    handlers = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN if number == signal.SIGHUP else None)
    stop_signals()
    assert handlers.keys() == {signal.SIGTERM, signal.SIGINT, signal.SIGUSR1}


def test_the_checkpoint_says_what_a_run_is(undisturbed, run, tmp_path):
    """config.json may be lost. A damaged checkpoint is passed over, another run's refused. No log is overwritten."""
    args, reference = undisturbed
    out = tmp_path / "run"
    shutil.copytree(reference, out)
    resume = [*args, f"--out_dir={out}", "--resume=True"]
    (out / "config.json").unlink()
    checkpoint.path_of(out, 20).unlink()
    code, text = run(resume)
    assert code == 0 and json.loads((out / "config.json").read_text())["settings"]["seed"] == 1, text
    assert "metrics.jsonl has changed" not in text
    assert_same_end(reference, out)
    code, text = run([*args, f"--out_dir={out}"])
    assert code == 2 and "already holds a run" in text, text
    flip_bit(checkpoint.path_of(out, 20), 20_000)
    code, text = run(resume)
    assert code == 0 and "ckpt-20.pt is damaged" in text and "trying the one before" in text, text
    assert_same_end(reference, out)
    (out / "metrics.jsonl").write_text((reference / "metrics.jsonl").read_text().replace('"loss": ', '"loss": 1', 1))
    code, text = run(resume)
    assert code == 0 and "metrics.jsonl has changed since this run wrote it" in text, text
    shutil.copy(reference / "metrics.jsonl", out)

    state = dict(torch.load(checkpoint.path_of(out, 20), weights_only=True))
    edited = state["source"] | {"model.py": "# an edit"}
    assert state["source"].keys() >= {"train.py", "run.py", "data/loader.py", "data/validation.py"}
    checkpoint.save(checkpoint.path_of(out, 20), state | {"source": edited})
    text = succeed([run(resume)])
    assert "model.py: changed since step 20" in text and "train.py: " not in text, text
    code, text = run([*resume, "--lr=0.1", "--mask_ratio=0.3"])
    assert code == 2 and "lr=0.1, but the run in" in text and "mask_ratio=0.3" in text and "branch_from" in text
    before = (out / "metrics.jsonl").read_bytes()
    for message, change in ("no checkpoint in", lambda path: path.write_bytes(b"no")), ("are gone", os.remove):
        for step in checkpoint.steps(out):
            change(checkpoint.path_of(out, step))
        code, text = run(resume)
        assert code == 2 and message in text and (out / "metrics.jsonl").read_bytes() == before, text


def test_what_does_not_alter_the_run_may_change(undisturbed, run, tmp_path):
    args, reference = undisturbed
    out = copy_up_to(15, reference, tmp_path / "run")
    succeed([run([*args, f"--out_dir={out}", "--resume=True", "--micro_batch=3", "--eval_interval=20"])])
    assert_same_losses(out, reference)


def test_branch_shares_the_trunk(undisturbed, run, tmp_path):
    """A run branched off another's checkpoint is the run that had these settings from the start.

    So is one that was stopped before its first checkpoint, or whose trunk is gone. Groups of parameters have the
    settings of the code that runs.
    """
    args, reference = undisturbed
    trunk, branch = tmp_path / "trunk", tmp_path / "branch"
    clm_only = ["--switch_step=14", "--max_steps=14", "--keep_steps=8", "--keep_last=1"]
    succeed([run([*args, *clm_only, f"--out_dir={trunk}"])])
    assert checkpoint.steps(trunk) == [8, 14]  # keep_steps makes and keeps a checkpoint off the interval
    state = checkpoint.load(trunk / "ckpt-8.pt")
    for key in "param_groups", "settings":
        state["optimizer"]["adamw"][key][0]["lr_scale"] = 3.0
    checkpoint.save(trunk / "ckpt-8.pt", state)
    args = [*args, f"--out_dir={branch}", f"--branch_from={trunk / 'ckpt-8.pt'}", "--resume=True"]
    succeed([run(args)])
    log = branch / "metrics.jsonl"
    for kept in [], [10]:
        for step in set(checkpoint.steps(branch)) - {*kept}:
            checkpoint.path_of(branch, step).unlink()
        log.write_text("".join(log.read_text().splitlines(True)[:3]))
        if kept:
            (trunk / "ckpt-8.pt").unlink()
        succeed([run(args)])
        x, y = (checkpoint.load(checkpoint.path_of(out, 20)) for out in (reference, branch))
        torch.testing.assert_close(x["model"], y["model"], rtol=0, atol=0)
        assert metrics(branch)[1:] == metrics(reference)[9:]
        assert metrics(branch)[0]["step"] == 8 and metrics(branch)[0]["tokens"] == 8 * 512  # its own first evaluation


def test_a_branch_follows_its_own_settings_and_init_from_takes_weights_only(undisturbed, run, tmp_path):
    args, reference = undisturbed
    branch = [*args, f"--out_dir={tmp_path / 'branch'}", f"--branch_from={reference / 'ckpt-15.pt'}"]
    others = "--beta1=0.8 --beta2=0.9 --eps=0.001 --weight_decay=0.2 --embedding_lr_scale=3".split()
    succeed([run([*branch, *others])])
    state = checkpoint.load(tmp_path / "branch")
    embedding, group = state["optimizer"]["adamw"]["param_groups"]
    assert (tuple(group["betas"]), group["eps"], group["weight_decay"]) == ((0.8, 0.9), 0.001, 0.2)
    assert embedding["lr"] == pytest.approx(3 * group["lr"]) and len(embedding["params"]) == 1
    assert group["lr"] == read_metrics(tmp_path / "branch")[-1]["lr"]  # the log has the common rate
    succeed([run([*args, f"--init_from={reference / 'ckpt-20.pt'}", f"--out_dir={tmp_path / 'new'}"])])
    old, new = read_metrics(reference), read_metrics(tmp_path / "new")
    assert new[0]["step"] == 0 and new[0]["val_mlm_loss"] == old[-1]["val_mlm_loss"] and new[1]["lr"] == old[1]["lr"]


@pytest.mark.parametrize("start", ["init_from", pytest.param("branch_from", marks=SLOW)])
def test_a_longer_context(undisturbed, run, tmp_path, start):
    """seq_len and rope_theta change together. After a few steps, short windows have the loss that they had before."""
    args, reference = undisturbed
    new = f"--{start}={reference / 'ckpt-20.pt'} --out_dir={tmp_path / 'long'} --seq_len=64 --rope_theta=40000".split()
    last = 30 if start == "branch_from" else 10
    code, text = run([*args, *new, f"--max_steps={last}", "--switch_step=0", "--lr=1e-3"])
    assert code == 0 and "ckpt-20.pt: seq_len is 32, here 64; rope_theta is 10000.0, here 40000.0" in text, text
    back = f"--init_from={tmp_path / 'long'} --rope_theta=40000 --out_dir={tmp_path / 'short'} --max_steps=1"
    succeed([run([*args, *back.split(), *"--switch_step=0 --warmup_steps=0 --decay_steps=0".split()])])
    before, after = read_metrics(reference)[-1], read_metrics(tmp_path / "short")[0]
    assert after["val_mlm_loss"] < before["val_mlm_loss"] + 0.05


BAD_INPUT = {  # settings, and the lines that the message has
    "--model=300m --mask_ratio=1.5 --lr=0 --max_step=3 --resume --clm_windows=1 --predict_from=after": """
        model=300m: must be one of demo, 210m
        mask_ratio=1.5: must be below 1
        lr=0.0: must be above 0
        unknown setting 'max_step'. Did you mean 'max_steps'?
        --resume: write --resume=VALUE
        clm_windows=1.0: must be below 1
        predict_from=after: must be one of mask, before""",
    "--global_batch_tokens=100 --switch_step=21 --warmup_steps=16 --keep_steps=-5 --vocab_size=100 "
    "--n_kv_head=3 --mask_proportions=0.8,0.1 --mask_ratio=0.01 --window_split=random --seq_len=16": """
        global_batch_tokens=100: must be a multiple of seq_len = 16
        max_steps=20: the schedule has 21 steps; --switch_step=10 --warmup_steps=7 --decay_steps=2 fits
        keep_steps=-5: must be above 0
        vocab_size=100: the tokenizer of
        n_head=4, n_kv_head=3: n_head must be a multiple of n_kv_head
        mask_proportions=(0.8, 0.1): must be 3 numbers with sum 1
        mask_ratio=0.01: masks not one token of 16
        window_split=random: needs seq_len of at least 24, got 16""",
    "--n_layer=99999999": "n_layer is 99,999,999: must be at most 1,000",
    "--global_batch_tokens=3200000": "train tokens are fewer than the 3200000 of one batch: give more text or a",
    "--seq_len=8192 --global_batch_tokens=8192": "of one window: give a smaller --seq_len, or prepare the text",
    "--clm_windows=1e308 --keep_steps=1e308": """
        clm_windows takes a float below 2**63
        keep_steps takes a tuple of int""",
    "--out_dir=README.md": "README.md cannot be written (File exists): give another folder",
    f"--out_dir={'x' * 300}": "File name too long: 'xxx",
    "--data=nowhere": "nowhere: no such folder; prepare it",
    "--data=docs:0.5,nowhere:0.5": "docs is not a prepared folder",
    "--init_from=nowhere.pt --branch_from=nowhere.pt": """
        give one of them
        nowhere.pt is neither a checkpoint nor a folder with one: no such file""",
    "--init_from=README.md": "README.md is damaged or not a checkpoint",
    "--max_steps=-1 --switch_step=0 --warmup_steps=0 --decay_steps=0": "max_steps=-1: must be at least 1",
    "--seq_len=1": "seq_len=1: must be at least 2",
    "--attention=triton --device=cpu": "attention=triton: ",
    "--model=origin": "model=origin: give init_from or branch_from",
    "--device=cuda": "device=cuda: this is process 99, but there are",
}


@pytest.mark.parametrize("args", BAD_INPUT)
def test_bad_input_is_reported_before_any_work(run, tiny, tmp_path, args):
    code, text = run([*tiny, f"--out_dir={tmp_path / 'run'}", *args.split()], LOCAL_RANK="99")
    assert code in (1, 2) and "Traceback" not in text, text
    for line in BAD_INPUT[args].strip().splitlines():
        assert line.strip() in text
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more, message", [
    ("--max_steps=19", "max_steps=19: {} is at step 20"),
    ("--n_layer=3", "{}: n_layer is 2, here 3 (--model=origin takes the shape of what the run starts from)"),
    ("--optimizer=muon", "optimizer=muon: that of {} is adamw. init_from takes its weights only"),
])  # fmt: skip
def test_a_branch_beyond_the_end_from_another_model_and_with_another_optimizer(
    undisturbed, run, tmp_path, more, message
):
    args, reference = undisturbed
    path = reference / "ckpt-20.pt"
    code, text = run([*args, f"--out_dir={tmp_path / 'run'}", f"--branch_from={path}", more])
    assert code == 2 and f"1. {message.format(path)}\n" in text and "  2. " not in text, text
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_before_the_update(run, tiny, tmp_path):
    """The first update is too large. The step after it is not made, and its loss gets into no checkpoint."""
    wrong = "--lr=1e18 --warmup_steps=0 --checkpoint_interval=1".split()
    code, text = run([*tiny, f"--out_dir={tmp_path / 'run'}", *wrong])
    found = re.search(r"step (\d+) \(clm\): loss \S+, gradient norm .*Branch off the checkpoint of step (\d+)", text)
    assert code == 1 and found and int(found[1]) == int(found[2]) + 1, text
    assert checkpoint.steps(tmp_path / "run") == [*range(1, int(found[1]))][-10:]


SLOW_DISK = """
import time, data.shards
plain = data.shards.sha256_of
data.shards.sha256_of = lambda paths: time.sleep(0.5) or plain(paths)
"""


@pytest.mark.parametrize("step", [5, 20])
def test_data_that_changed_are_noticed(undisturbed, data_dir, run, tmp_path, step):
    """A flipped bit, in a run that resumes and in one that has finished. With the bit as it was, the run goes on."""
    args, reference = undisturbed
    data, out = shutil.copytree(data_dir, tmp_path / "data"), copy_up_to(step, reference, tmp_path / "run")
    flip_bit(data / "train-00001.bin", 1000)
    resume = [*args, f"--data={data}", f"--out_dir={out}", "--resume=True"]
    code, text = run(resume, train_after(tmp_path, SLOW_DISK))
    assert code == 1 and f"{data}/train-00001.bin has changed since it was prepared" in text, text
    assert "Traceback" not in text and (20 in checkpoint.steps(out)) == (step == 20)
    if step == 5:
        succeed([run([*resume, "--verify_data=False"])])
        copy_up_to(5, out, tmp_path / "again")
        out = tmp_path / "again"
    flip_bit(data / "train-00001.bin", 1000)
    succeed([run([*resume, f"--out_dir={out}"])])
    assert_same_end(reference, out)


def test_what_only_shows_cannot_stop_a_run(run, tiny, tmp_path):
    """Samples that do not fit into seq_len, and a figure that cannot be written, are warnings. Links are followed."""
    (tmp_path / "run" / "loss.png").mkdir(parents=True)
    links = [tmp_path / "run" / name for name in ("config.json", "metrics.jsonl", "ckpt-20.pt")]
    for link in links:
        link.symlink_to(tmp_path / link.name)
    code, text = run([*tiny, f"--out_dir={tmp_path / 'run'}", "--seq_len=4", "--global_batch_tokens=64"], SHOW="1")
    assert code == 0 and "print_examples failed and is left out" in text, text
    assert "plot_run failed and is left out" in text, text
    assert all(link.is_symlink() and (tmp_path / link.name).stat().st_size for link in links)
    assert checkpoint.steps(tmp_path / "run")[-1] == 20


HALF_A_LINE = 'calls[-1][0].file.write(b"{half"), calls[-1][0].file.flush()'


@pytest.mark.parametrize("fails, when, error, saved", [
    ("data.loader.Batches.batch", "args[1] == 7", "RuntimeError", 7),
    ("torch.optim.AdamW.step", "len(calls) == 8", "RuntimeError", 5),
    ("data.loader.Batches.batch", "True", "torch.OutOfMemoryError", 0),
    ("runtime.utilization", "len(calls) == 8", "RuntimeError", 5),
    ("data.validation.evaluate", "len(calls) == 3", "torch.OutOfMemoryError", 8),  # that of step 10
    ("data.validation.evaluate", "len(calls) == 4", "RuntimeError", 15),  # the last one
    ("run.MetricsLog.write", f"len(calls) == 13 and ({HALF_A_LINE})", "OSError", 10),
])  # fmt: skip
def test_an_error_in_the_loop_loses_no_finished_step(undisturbed, run, tmp_path, fails, when, error, saved):
    """Before the update of a step, the steps before it are saved. From then on until its line is in the log, none is.

    A resumed run ends with the weights and the log of an undisturbed one. A model that does not fit into the memory is
    told what to try.
    """
    args, reference = undisturbed
    place, name = fails.rsplit(".", 1)
    code = f"""
import torch, runtime, data.loader, data.validation, run
plain, calls = {fails}, []
def fail(*args, **options):
    calls.append(args)
    if {when}:
        raise {error}("a fault of the machine")
    return plain(*args, **options)
{place}.{name} = fail
"""
    args = [*args, f"--out_dir={tmp_path / 'run'}", "--resume=True"]
    exit_code, text = run(args, train_after(tmp_path, code))
    assert exit_code == 1 and "a fault of the machine" in text, text
    assert max(checkpoint.steps(tmp_path / "run"), default=0) == saved
    assert ("--shard=True" in text) == (error == "torch.OutOfMemoryError"), text
    assert ("Traceback" in text) == (error == "RuntimeError"), text
    assert "metrics.jsonl has changed" not in succeed([run(args)])
    assert_same_end(reference, tmp_path / "run")


def test_weights_that_are_not_finite_are_not_saved(undisturbed, run, tmp_path):
    """A fault of the memory in step 10, then one in the optimizer's state on the disk.

    The messages name a checkpoint that can be used, and the run goes on from it.
    """
    args, reference = undisturbed
    code = """
import torch
plain, calls = torch.optim.AdamW.step, []
def step(self, *args):
    plain(self, *args)
    calls.append(0)
    if len(calls) == 10:
        self.param_groups[1]["params"][3].data.view(-1)[5] = torch.nan
torch.optim.AdamW.step = step
"""
    args = [*args, f"--out_dir={tmp_path / 'run'}", "--resume=True"]
    code, text = run(args, train_after(tmp_path, code))
    assert code == 1 and "step 10: model.blocks.0." in text and "the checkpoint of step 8, which is finite" in text, (
        text
    )
    assert "Traceback" not in text and checkpoint.steps(tmp_path / "run") == [5, 8]
    whole = (tmp_path / "run/ckpt-8.pt").read_bytes()
    state = checkpoint.load(tmp_path / "run/ckpt-8.pt")
    state["optimizer"]["adamw"]["state"][3]["exp_avg"].view(-1)[5] = torch.nan
    checkpoint.save(tmp_path / "run/ckpt-8.pt", state)
    code, text = run(args)
    assert code == 1 and "Branch off the checkpoint of step 5, which is finite" in text, text
    (tmp_path / "run/ckpt-8.pt").write_bytes(whole)
    succeed([run(args)])
    assert_same_end(reference, tmp_path / "run")


def test_full_disk(undisturbed, run, tmp_path):
    """The run ends with a message, and nothing half-written is left."""
    args, reference = undisturbed
    size = checkpoint.path_of(reference, 20).stat().st_size
    code, text = run([*args, f"--out_dir={tmp_path / 'run'}"], FILE_SIZE_LIMIT=str(size // 2))
    assert code == 1 and "File too large" in text and "--resume=True" in text, text
    assert not list((tmp_path / "run").glob("*.partial")) and checkpoint.steps(tmp_path / "run") == []


# --- Many processes ---

# Arguments of both processes, further ones of the second, what both messages say. {} is the fixture `another`.
DIFFERENT = [
    ("", "--lr=1e-3 --optimizer=muon --seed=2 --mask_ratio=0.3 --micro_batch=4 --clm_windows=0.25 --max_steps=19 "
     "--dtype=bfloat16 --d_ff=64 --shard=True",
     "lr: 0.003 on process 0, 0.001 on process 1; optimizer: adamw; seed: 1; mask_ratio: 0.4; micro_batch: 8; "
     "clm_windows: 0.0; max_steps: 20; dtype: float32 on process 0, bfloat16 on process 1; d_ff: 48; shard: False"),
    ("", "--data={}/tiny", "the fingerprint of the data: "),
    ("--shard=True", "--data={}/tiny", "the fingerprint of the data: "),
    ("", "--data={}/damaged", "{}/damaged/train-00001.bin has changed since it was prepared"),
    ("--shard=True", "--data={}/damaged", "{}/damaged/train-00001.bin has changed since it was prepared"),
    ("", "{}/train.py", "the checksum of train.py: "),
    ("--init_from={}/ckpt-15.pt", "--init_from={}/ckpt-20.pt", "the content of init_from: "),
    ("--branch_from={}/ckpt-15.pt --shard=True", "--branch_from={}/ckpt-10.pt", "the content of branch_from: "),
    ("", "--init_from={}/ckpt-20.pt", "init_from is given: False on process 0, True on process 1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def another(undisturbed, data_dir, tmp_path_factory):
    """A folder with other data, a damaged copy of the data, an edited train.py with the code, and checkpoints."""
    folder = tmp_path_factory.mktemp("another")
    prepared(folder, seed=1)
    shutil.copytree(data_dir, folder / "damaged")
    flip_bit(folder / "damaged/train-00001.bin", 1000)
    shutil.copytree(ROOT, folder, ignore=UNUSED, dirs_exist_ok=True)
    with open(folder / "train.py", "a") as file:
        file.write("# an edit\n")
    for path in undisturbed[1].glob("*.pt"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize("both, second, messages", DIFFERENT)
def test_processes_that_differ_do_not_train(tiny, run_world, another, tmp_path, both, second, messages):
    """Each process ends with the same message, and no run begins. Damage is found while the run trains."""
    args = [*tiny, *both.format(another).split(), f"--out_dir={tmp_path / 'run'}"]
    for code, text in run_world(2, args, second=second.format(another).split()):
        assert code == 1 and "Traceback" not in text, text
        for message in messages.format(another).split("; "):
            assert message in text, text
    if "damaged" in second:
        assert 20 not in checkpoint.steps(tmp_path / "run")
    else:
        assert {path.name for path in (tmp_path / "run").iterdir()} == {"lock"}


def test_paths_may_differ_between_processes(tiny, run_world, data_dir, undisturbed, another, tmp_path):
    """A copy of the data, and of the checkpoint, with the same content."""
    shutil.copytree(data_dir, tmp_path / "copy")
    second = [f"--data={tmp_path / 'copy'}", f"--init_from={another / 'ckpt-20.pt'}", f"--out_dir={tmp_path / 'b'}"]
    args = [*tiny, f"--init_from={undisturbed[1] / 'ckpt-20.pt'}", f"--out_dir={tmp_path / 'a'}"]
    succeed(run_world(2, args, second=second))
    assert checkpoint.steps(tmp_path / "a")[-1] == 20 and not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    "world, options",
    [
        (2, "--micro_batch=3"),
        pytest.param(2, "--micro_batch=3 --shard=True", marks=SLOW),  # test_other_objectives compares shards, too
        pytest.param(1, "--micro_batch=1", marks=SLOW),
        pytest.param(1, "--micro_batch=16 --shard=True", marks=SLOW),
        pytest.param(3, "--micro_batch=4", marks=SLOW),
        pytest.param(4, "--micro_batch=4", marks=SLOW),
        pytest.param(4, "--micro_batch=1 --shard=True --recompute=True", marks=SLOW),
    ],
)
def test_world_size_and_micro_batch_do_not_change_the_run(undisturbed, run_world, tmp_path, world, options):
    args, reference = undisturbed
    succeed(run_world(world, [*args, f"--out_dir={tmp_path / 'run'}", *options.split()]))
    assert_same_losses(tmp_path / "run", reference, also=() if "shard" in options else ("grad_norm",))
    # The norm of a long vector in fp32 depends on where it is cut.
    assert_same_losses(tmp_path / "run", reference, 1e-4)


@SLOW
def test_in_bf16_shards_have_the_gradient_of_whole_weights(run_world, tiny, tmp_path):
    """Of the first step, because later ones also have the rounding of the steps before."""
    args = [*tiny, *"--dtype=bfloat16 --max_steps=1 --switch_step=0 --warmup_steps=0 --decay_steps=1".split()]
    for shard in (True, False):
        succeed(run_world(2, [*args, f"--out_dir={tmp_path / str(shard)}", f"--shard={shard}"]))
    with_shards, whole = (read_metrics(tmp_path / str(shard)) for shard in (True, False))
    assert with_shards[0]["val_mlm_loss"] == whole[0]["val_mlm_loss"]
    assert with_shards[1]["loss"] == whole[1]["loss"]
    assert with_shards[1]["grad_norm"] == pytest.approx(whole[1]["grad_norm"], rel=2e-5)


COMPILED = """
import runpy, sys, torch, torch._dynamo.utils
plain = torch.compile
torch.compile = lambda *args, **options: plain(*args, backend="{}", **options)
runpy.run_path("train.py", run_name="__main__")
sys.exit(f"graphs: {{torch._dynamo.utils.counters['stats']['unique_graphs']}}")
"""


@SLOW
@pytest.mark.parametrize("world, options, backend", [
    (1, "", "inductor"),
    (1, "--recompute=True", "aot_eager"),
    (1, "--clm_windows=0.25 --micro_batch=4", "aot_eager"),
    (2, "--shard=True", "aot_eager"),
])  # fmt: skip
def test_a_run_compiles_the_blocks_and_the_loss_once_for_each_mask(
    undisturbed, run_world, tmp_path, world, options, backend
):
    """The validation, with a smaller last batch, compiles nothing, and neither do the samples."""
    args, reference = undisturbed
    (tmp_path / "script.py").write_text(COMPILED.format(backend))
    args = [*args, "--compile=True", *options.split(), f"--out_dir={tmp_path / 'run'}"]
    for _, text in run_world(world, args, str(tmp_path / "script.py"), SHOW="1"):
        assert text.endswith("graphs: 4\n"), text
    if "clm_windows" not in options:
        assert_same_losses(tmp_path / "run", reference, also=() if world > 1 else ("grad_norm",))


@pytest.mark.parametrize("n, shard", [(2, False), (2, True), pytest.param(4, False, marks=SLOW)])
def test_several_processes_resume_bit_for_bit(undisturbed, run_world, tmp_path, n, shard):
    args = [*undisturbed[0], f"--shard={shard}", *"--max_steps=10 --switch_step=7".split()]
    a, b = tmp_path / "a", tmp_path / "b"
    succeed(run_world(n, [*args, f"--out_dir={a}"]))
    copy_up_to(5, a, b)
    succeed(run_world(n, [*args, f"--out_dir={b}", "--resume=True"]))
    assert_same_end(a, b, 10)


@SLOW
@pytest.mark.parametrize("options", ["--tie_embeddings=True", "--optimizer=muon"])
def test_with_shards_a_checkpoint_is_the_same_file(run, run_world, tiny, tmp_path, options):
    """Initial and loaded weights are those without shards, bit for bit. A run goes on with shards or without."""
    args = [*tiny, *options.split(), "--checkpoint_interval=10"]
    one, two = tmp_path / "one", tmp_path / "two"
    still = [*args, *"--lr=1e-30 --max_steps=1 --switch_step=0 --warmup_steps=0 --decay_steps=1".split()]
    succeed([run([*still, f"--out_dir={one}-drawn"])])  # a step that changes no weight
    model = checkpoint.load(f"{one}-drawn")["model"]
    for name, more in ("drawn", ""), ("loaded", f"--init_from={one}-drawn --seed=2"):
        succeed(run_world(2, [*still, f"--out_dir={two}-{name}", "--shard=True", *more.split()]))
        torch.testing.assert_close(checkpoint.load(f"{two}-{name}")["model"], model, rtol=0, atol=0)
    succeed([run([*args, f"--out_dir={one}"])])
    x = checkpoint.load(one)
    for shard in (True, False):
        out = copy_up_to(10, one if shard else two, two if shard else tmp_path / "back")
        more = ["--resume=True", f"--out_dir={out}", f"--shard={shard}"]
        succeed(run_world(2, [*args, *more]) if shard else [run([*args, *more])])
        assert_same_losses(out, one, 1e-3 if "muon" in options else 1e-5)
        y = checkpoint.load(out)
        assert x.keys() == y.keys() and list(x["model"]) == list(y["model"])
        for name, its in x["optimizer"].items():
            theirs = y["optimizer"][name]
            assert its["param_groups"] == theirs["param_groups"] and its["state"].keys() == theirs["state"].keys()


@SLOW
def test_torchrun(undisturbed, tmp_path):
    """The launcher itself. A signal to it: the processes agree on a step, save it and leave; then they go on."""
    args, reference = undisturbed
    out = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, "train.py", *args, f"--out_dir={out}", "--resume=True"]
    with open(tmp_path / "output", "w") as output:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output)
        while last_logged(out) < 2:
            assert launcher.poll() is None, (tmp_path / "output").read_text()
            time.sleep(0.001)
        launcher.terminate()
        assert launcher.wait(60) != 0
    step = int(re.search(r"Stopped at step (\d+) of 20", (tmp_path / "output").read_text())[1])
    assert checkpoint.steps(out)[-1] == step < 20
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same_losses(out, reference)
