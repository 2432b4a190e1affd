"""The promises about a run: it resumes bit for bit, and the world size does not change it."""

import json
import os
import platform
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
from conftest import prepared
from data.files import lock_folder
from data.objective import clm_steps
from errors import DataError
from helpers import (
    ROOT, UNUSED, Run, assert_same_end, assert_same_losses, copy_up_to, flip_bit, metrics, rows_of, succeed,
)  # fmt: skip
from run import last_logged, read_metrics

SLOW = pytest.mark.slow
END = "--switch_step=0 --warmup_steps=0 --decay_steps=1"  # for runs of few steps
SPOIL = 'args[0].param_groups[1]["params"][3].data.view(-1)[5].fill_(torch.nan).isfinite()'  # False


def slow(*values):
    return pytest.param(*values, marks=SLOW)


@pytest.fixture
def again(undisturbed, tmp_path):
    """Arguments that make the undisturbed run in another folder or resume it there, that folder, and the first one."""
    args, reference = undisturbed
    return [*args, f"--out_dir={tmp_path / 'run'}", "--resume=True"], tmp_path / "run", reference


def train_after(folder, code, then=""):
    """Return the path of a script that executes code, then train.py, then the rest."""
    path = folder / "script.py"
    path.write_text(f'{code}\nimport runpy\nrunpy.run_path("train.py", run_name="__main__")\n{then}')
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
    _, out = undisturbed
    lines = read_metrics(out)
    assert [line["phase"] for line in lines] == ["clm"] * 9 + ["mlm"] * 12
    assert [line["step"] for line in lines if "val_clm_loss" in line] == [0, 8, 10, 20]
    every = {"step", "phase", "tokens", "seconds", "flops"}
    assert lines[0].keys() == every | {"val_clm_loss", "val_mlm_loss"} and lines[0]["flops"] == 0
    assert lines[1].keys() == every | {"loss", "grad_norm", "lr", "tokens_per_s"}
    assert lines[-2].keys() == lines[1].keys() | {"mask_ratio"} and lines[-2]["mask_ratio"] == 0.4
    assert [(line["step"], line["tokens"]) for line in lines] == [(step, 512 * step) for step in range(21)]
    warmup, constant, decay = [1e-3, 2e-3], [3e-3] * 13, [3e-3 * n / 5 for n in (5, 4, 3, 2, 1)]
    assert [line["lr"] for line in lines[1:]] == pytest.approx(warmup + constant + decay)
    assert [line["step"] for line in lines[1:] if line["tokens_per_s"] is None] == [1, 9]  # a phase's first compiles
    assert lines[-1]["val_mlm_loss"] < lines[0]["val_mlm_loss"] - 1
    facts = json.loads((out / "config.json").read_text())
    assert facts["settings"]["max_steps"] == 20 and facts["model"]["d_model"] == 32
    assert "def main" in (out / "source" / "train.py").read_text()
    assert f"\ncheckpoint: {out}/ckpt-20.pt\n" in (out.parent / "output").read_text()


# --- Other objectives, another optimizer ---

# Arguments, and the largest relative difference between world sizes. A single window of CLM leaves none to one process.
OTHERS = [
    ("--clm_windows=0.0625 --mask_ratio=0.3 --predict_from=before --window_split=document --shard=True", 1e-5),
    ("--data={mixture} --window_split=random --switch_step=0 --clm_windows=0.0625", 1e-5),
    slow("--optimizer=muon --shard=True", 1e-3),  # its iteration is in bf16
]


@pytest.mark.parametrize("options, difference", OTHERS)
def test_other_objectives_optimizers_and_data_keep_the_promises(train, mixture, tiny, tmp_path, options, difference):
    """Resumed, in the mixture in each phase, the end is the same bit for bit; on two processes to rounding."""
    args, reference = [*tiny, *options.format(mixture=mixture).split()], tmp_path / "reference"
    train(1, *args, f"--out_dir={reference}")
    lines = read_metrics(reference)
    loss = "val_mntp_loss" if "before" in options else "val_mlm_loss"
    assert lines[-1][loss] < lines[0][loss] - 0.5
    out = copy_up_to(10, reference, tmp_path / "resumed")
    train(1, *args, f"--out_dir={out}", "--resume=True")
    assert_same_end(reference, out, 20)
    train(2, *args, f"--out_dir={tmp_path / 'two'}", "--micro_batch=3")
    assert_same_losses(tmp_path / "two", reference, difference, also=())


def test_a_mixture_counts_exactly(train, tiny, tmp_path):
    """16 windows of 32 tokens a step. The loss is the mean over all predicted tokens of both kinds."""
    out = tmp_path / "run"
    more = "--clm_windows=0.25 --mask_ratio=0.25 --max_steps=17 --eval_windows=999".split()
    text = train(1, *tiny, *more, f"--out_dir={out}")
    assert int(re.search(r"\(validation: (\d+) windows\)", text)[1]) < 150  # there are no more
    lines = [line for line in read_metrics(out) if line["phase"] == "clm + mlm" and "loss" in line]
    assert [line["step"] for line in lines] == [*range(9, 18)]
    for line in lines:
        assert line["mask_ratio"] == 0.25
        clm = 4 * 31 / (4 * 31 + 12 * 8)  # of the predicted tokens; a little more, as MLM predicts no special tokens
        mean, gap = clm * line["clm_loss"] + (1 - clm) * line["mlm_loss"], abs(line["clm_loss"] - line["mlm_loss"])
        assert line["loss"] == pytest.approx(mean, abs=0.02 * gap + 1e-6)
    phases = checkpoint.load(out)["phases"]
    assert [(its["phase"], its["steps"]) for its in phases] == [("clm", 8), ("clm + mlm", 9)]
    assert clm_steps(phases) == 8 + 2.25 and phases[1]["objectives"]["mlm"]["mask_ratio"] == [0.25, 0.25, 0.25]


# --- Starting, stopping, going on ---


@pytest.mark.parametrize("seed", [0, slow(1), slow(2), slow(3)])
def test_killed_at_random_moments(again, train, tmp_path, seed):
    """SIGKILL in the middle of a save, then at a random moment; the end is the same, bit for bit."""
    (args, out, reference), rng = again, random.Random(seed)
    args = [*args, "--checkpoint_interval=2", "--keep_last=3"]
    for partial in True, False:
        attempt, aim = Run(args, tmp_path / "output"), max(checkpoint.steps(out), default=0) + rng.randrange(8)
        attempt.until(lambda: list(out.glob("ckpt*.partial")) if partial else checkpoint.steps(out)[-1:] >= [aim])
        time.sleep(0 if partial else rng.uniform(0, 0.03))
        attempt.process.kill()
        attempt.process.join()
        assert not partial or list(out.glob("ckpt-*.partial")), "the kill did not hit the save"
        assert 20 not in checkpoint.steps(out), "the run ended before the kill"
    train(1, *args)
    assert_same_end(reference, out)


@pytest.mark.parametrize("number", [signal.SIGTERM, slow(signal.SIGINT)])
def test_a_signal_saves_and_says_how_to_continue(again, run, train, tmp_path, number):
    """While a process trains, no other one writes to its folder; what runs after it goes on from its last step. As
    under nohup, a signal that is ignored at the start stays so."""
    args, out, reference = again
    nohup = train_after(tmp_path, "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)")
    attempt = Run(args, tmp_path / "output", nohup)
    attempt.until(lambda: last_logged(out) >= 1)
    with pytest.raises(DataError, match=f"in use by process {attempt.process.pid} on"):
        lock_folder(out, shared=True)
    os.kill(attempt.process.pid, signal.SIGHUP)
    attempt.until(lambda: last_logged(out) >= 4)
    os.kill(attempt.process.pid, number)
    code, text = attempt.wait()
    step = int(re.search(r"Stopped at step (\d+) of 20. Steps with checkpoints: .*\1\]\.\n.*--resume=True", text)[1])
    ended = 1 if number == signal.SIGINT else 128 + number  # a KeyboardInterrupt, by which a shell ends a loop
    assert code == ended and 0 < step < 20 and step in checkpoint.steps(out)
    before = metrics(out)
    with lock_folder(out, shared=True):
        code, text = run(args)
    assert code == 1 and f"in use by process {os.getpid()} on" in text and metrics(out) == before, text
    train(1, *args)
    assert_same_end(reference, out)


def test_the_checkpoint_says_what_a_run_is(again, run):
    """config.json may be lost. A damaged checkpoint is passed over, another run's refused. No log is overwritten."""
    resume, out, reference = again
    newest, log = checkpoint.path_of(out, 20), out / "metrics.jsonl"
    shutil.copytree(reference, out)
    (out / "config.json").unlink()
    newest.unlink()
    text = succeed([run(resume)])
    assert json.loads((out / "config.json").read_text())["settings"]["seed"] == 1
    assert "metrics.jsonl has changed" not in text
    flip_bit(newest, 20_000)
    text = succeed([run(resume)])
    assert "ckpt-20.pt is damaged" in text and "trying the one before" in text, text
    assert_same_end(reference, out)

    log.write_text(log.read_text().replace('"loss": ', '"loss": 1', 1))
    state = dict(torch.load(newest, weights_only=True))
    assert state["source"].keys() >= {"train.py", "run.py", "data/loader.py", "data/validation.py"}
    checkpoint.save(newest, state | {"source": state["source"] | {"model.py": "# an edit"}})
    text = succeed([run(resume)])
    for message in "metrics.jsonl has changed since", "model.py: changed since step 20", "model.py has changed since":
        assert message in text and "train.py: " not in text, text

    before, wrong = log.read_bytes(), ["--lr=0.1", "--mask_ratio=0.3"]
    different = "mask_ratio=0.3, but the run in .* has mask_ratio=0.4; lr=0.1, but .*branch_from"
    for given, message in ([*resume, "--resume=False"], "already holds a run"), ([*resume, *wrong], different):
        code, text = run(given)
        assert code == 2 and re.search(message, text), text
    for message, change in ("no checkpoint in", lambda path: path.write_bytes(b"no")), ("are gone", os.remove):
        for step in checkpoint.steps(out):
            change(checkpoint.path_of(out, step))
        code, text = run(resume)
        assert code == 2 and message in text, text
    assert log.read_bytes() == before


def test_branch_shares_the_trunk(undisturbed, train, tmp_path):
    """A run branched off another's checkpoint is the run that had these settings from the start. So is one that was
    stopped before its first checkpoint, or whose trunk is gone. Groups of parameters have the settings of the code that
    runs."""
    args, reference = undisturbed
    trunk, branch = tmp_path / "trunk", tmp_path / "branch"
    start, log = trunk / "ckpt-8.pt", branch / "metrics.jsonl"
    train(1, *args, "--switch_step=14", "--max_steps=14", "--keep_steps=8", "--keep_last=1", f"--out_dir={trunk}")
    assert checkpoint.steps(trunk) == [8, 14]  # keep_steps makes and keeps a checkpoint off the interval
    state = checkpoint.load(start)
    for key in "param_groups", "settings":
        state["optimizer"]["adamw"][key][0]["lr_scale"] = 3.0
    checkpoint.save(start, state)
    args = [*args, f"--out_dir={branch}", f"--branch_from={start}", "--resume=True"]
    train(1, *args)
    for kept in [], [10]:
        for step in set(checkpoint.steps(branch)) - {*kept}:
            checkpoint.path_of(branch, step).unlink()
        log.write_text("".join(log.read_text().splitlines(True)[:3]))
        if kept:
            start.unlink()
        train(1, *args)
        weights = (checkpoint.load(checkpoint.path_of(out, 20))["model"] for out in (reference, branch))
        torch.testing.assert_close(*weights, rtol=0, atol=0)
        first, *others = metrics(branch)
        assert others == metrics(reference)[9:]
        assert first["step"] == 8 and first["tokens"] == 8 * 512  # its own first evaluation


def test_a_branch_follows_its_own_settings_and_init_from_takes_weights_only(undisturbed, train, tmp_path):
    """The context and its rotary positions may change, too, which is reported."""
    args, reference = undisturbed
    others = "--beta1=0.8 --beta2=0.9 --eps=0.001 --weight_decay=0.2 --embedding_lr_scale=3".split()
    others += [f"--branch_from={reference / 'ckpt-15.pt'}", "--seq_len=64", "--rope_theta=40000"]
    text = train(1, *args, f"--out_dir={tmp_path / 'branch'}", *others)
    assert "ckpt-15.pt: seq_len is 32, here 64; rope_theta is 10000.0, here 40000.0" in text, text
    embedding, group = checkpoint.load(tmp_path / "branch")["optimizer"]["adamw"]["param_groups"]
    assert (tuple(group["betas"]), group["eps"], group["weight_decay"]) == ((0.8, 0.9), 0.001, 0.2)
    assert embedding["lr"] == pytest.approx(3 * group["lr"]) and len(embedding["params"]) == 1
    assert group["lr"] == read_metrics(tmp_path / "branch")[-1]["lr"]  # the log has the common rate
    train(1, *args, f"--init_from={reference / 'ckpt-20.pt'}", f"--out_dir={tmp_path / 'new'}")
    old, new = read_metrics(reference), read_metrics(tmp_path / "new")
    assert new[0]["step"] == 0 and new[0]["val_mlm_loss"] == old[-1]["val_mlm_loss"] and new[1]["lr"] == old[1]["lr"]


# --- Faults ---


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
def test_data_that_changed_are_noticed(again, data_dir, run, train, tmp_path, step):
    """A flipped bit, in a run that resumes and in one that has finished. With the bit as it was, the run goes on. The
    message says up to which step the data were whole: those of a start that read them all."""
    (args, out, reference), data = again, shutil.copytree(data_dir, tmp_path / "data")
    copy_up_to(step, reference, out)
    flip_bit(data / "train-00001.bin", 1000)
    args = [*args, f"--data={data}"]
    code, text = run(args, train_after(tmp_path, SLOW_DISK))
    assert code == 1 and f"{data}/train-00001.bin on {platform.node()} has changed since" in text, text
    assert "those after step 0, then resume" in text
    assert "Traceback" not in text and (20 in checkpoint.steps(out)) == (step == 20)
    if step == 5:
        train(1, *args, "--verify_data=False")
        out = copy_up_to(5, out, tmp_path / "resumed")
    flip_bit(data / "train-00001.bin", 1000)
    train(1, *args, f"--out_dir={out}")
    assert_same_end(reference, out)
    if step == 5:
        flip_bit(data / "train-00001.bin", 1000)
        assert "those after step 5, then resume" in run([*args, f"--out_dir={out}"])[1]


def test_what_only_shows_cannot_stop_a_run(train, tiny, tmp_path):
    """Samples that do not fit into seq_len, and a figure that cannot be written, are warnings. Links are followed."""
    out = tmp_path / "run"
    (out / "loss.png").mkdir(parents=True)
    files = "config.json", "metrics.jsonl", "ckpt-20.pt"
    for name in files:
        (out / name).symlink_to(tmp_path / name)
    text = train(1, *tiny, f"--out_dir={out}", "--seq_len=4", "--global_batch_tokens=64", SHOW="1")
    assert all(f"{function} failed and is left out" in text for function in ("print_examples", "plot_run")), text
    assert all((out / name).is_symlink() and (tmp_path / name).stat().st_size for name in files)
    assert checkpoint.steps(out)[-1] == 20


FAULT = """
import torch, runtime, data.loader, data.validation, run
plain, calls = {place}.{name}, []
def fail(*args, **options):
    calls.append(args)
    if {when}:
        raise {error}("a fault of the machine")
    return plain(*args, **options)
{place}.{name} = fail
"""


@pytest.mark.parametrize("fails, when, error, saved", rows_of("faults of the machine"))
def test_an_error_in_the_loop_loses_no_finished_step(again, run, tmp_path, fails, when, error, saved):
    """Before the update of a step, the steps before it are saved. From then on until its line is in the log, none is. A
    resumed run ends with the weights and the log of an undisturbed one. A model that does not fit into the memory is
    told what to try."""
    (args, out, reference), (place, name) = again, fails.rsplit(".", 1)
    code, text = run(args, train_after(tmp_path, FAULT.format(place=place, name=name, when=when, error=error)))
    assert code == 1 and "a fault of the machine" in text, text
    assert max(checkpoint.steps(out), default=0) == int(saved)
    assert ("--shard=True" in text) == (error == "torch.OutOfMemoryError"), text
    assert ("Traceback" in text) == (error == "RuntimeError"), text
    assert "metrics.jsonl has changed" not in succeed([run(args)])
    assert_same_end(reference, out)


def test_weights_that_are_not_finite_are_not_saved(again, run, train, tmp_path):
    """A fault of the memory in step 10. The message names a checkpoint that can be used, and the run resumes there."""
    args, out, reference = again
    args = [*args, "--keep_last=1"]  # two are kept until the end
    fault = FAULT.format(place="torch.optim.AdamW", name="step", when=f"len(calls) == 10 and {SPOIL}", error="OSError")
    code, text = run(args, train_after(tmp_path, fault))
    assert code == 1 and "step 10: model.blocks.0." in text and "Traceback" not in text, text
    assert "the checkpoint of step 8, which is finite" in text and checkpoint.steps(out) == [5, 8]
    train(1, *args)
    assert_same_end(reference, out)


def test_a_full_disk_leaves_nothing_half_written(again, run):
    args, out, reference = again
    code, text = run(args, FILE_SIZE_LIMIT=str(checkpoint.path_of(reference, 20).stat().st_size // 2))
    assert code == 1 and "File too large" in text and "--resume=True" in text, text
    assert not [*out.glob("*.partial"), *checkpoint.steps(out)]


# --- Many processes ---

# Arguments of both processes, further ones of the second, and what both messages say.
DIFFERENT = (ROOT / "tests/processes_that_differ.txt").read_text().replace("\\\n", "").strip().split("\n\n")


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


@pytest.mark.parametrize("case", DIFFERENT)
def test_processes_that_differ_do_not_train(tiny, run_world, another, tmp_path, case):
    """Each process ends with the same message, and no run begins. Damage is found while the run trains."""
    (both, second, *messages), out = case.format(another=another).split("\n"), tmp_path / "run"
    args = [*tiny, *both.removeprefix("both:").split(), f"--out_dir={out}"]
    for code, text in run_world(2, args, second=second.removeprefix("second:")):
        assert code == 1 and "Traceback" not in text, text
        assert [message for message in messages if message.strip() not in text] == [], text
    assert 20 not in checkpoint.steps(out) if "damaged" in second else {*os.listdir(out)} == {"lock"}


@pytest.mark.parametrize("n, options", [
    (2, "--micro_batch=3"),
    slow(2, "--micro_batch=3 --shard=True"),  # test_other_objectives compares shards, too
    slow(1, "--micro_batch=1"), slow(1, "--micro_batch=16 --shard=True"), slow(3, "--micro_batch=4"),
    slow(4, "--micro_batch=4"), slow(4, "--micro_batch=1 --shard=True --recompute=True"),
])  # fmt: skip
def test_world_size_and_micro_batch_do_not_change_the_run(undisturbed, train, tmp_path, n, options):
    """Nor does a change of them, or of how often the run is validated, when a run is resumed."""
    args, reference = undisturbed
    out, again = tmp_path / "run", copy_up_to(15, reference, tmp_path / "again")
    train(n, *args, f"--out_dir={out}", *options.split())
    assert_same_losses(out, reference, also=() if "shard" in options else ("grad_norm",))
    assert_same_losses(out, reference, 1e-4)  # the norm of a long vector in fp32 depends on where it is cut
    train(n, *args, f"--out_dir={again}", *options.split(), "--resume=True", "--eval_interval=20")
    assert_same_losses(again, reference, 1e-4)


@SLOW
def test_in_bf16_shards_have_the_gradient_of_whole_weights(train, tiny, tmp_path):
    """Of the first step, because later ones also have the rounding of the steps before."""
    for shard in (True, False):
        more = f"--dtype=bfloat16 --max_steps=1 {END} --shard={shard} --out_dir={tmp_path / str(shard)}"
        train(2, *tiny, *more.split())
    with_shards, whole = (read_metrics(tmp_path / str(shard)) for shard in (True, False))
    assert with_shards[0]["val_mlm_loss"] == whole[0]["val_mlm_loss"] and with_shards[1]["loss"] == whole[1]["loss"]
    assert with_shards[1]["grad_norm"] == pytest.approx(whole[1]["grad_norm"], rel=2e-5)


COMPILED = """
import torch, torch._dynamo.utils
plain = torch.compile
torch.compile = lambda *args, **options: plain(*args, backend="{}", **options)
"""
COUNTED = """print("graphs:", torch._dynamo.utils.counters["stats"]["unique_graphs"])"""


@SLOW
@pytest.mark.parametrize("world, options, backend", [
    (1, "", "inductor"), (1, "--recompute=True", "aot_eager"),
    (1, "--clm_windows=0.25 --micro_batch=4", "aot_eager"), (2, "--shard=True", "aot_eager"),
])  # fmt: skip
def test_a_run_compiles_the_blocks_and_the_loss_once_for_each_mask(again, run_world, tmp_path, world, options, backend):
    """The validation, with a smaller last batch, compiles nothing, and neither do the samples."""
    args, out, reference = again
    script = train_after(tmp_path, COMPILED.format(backend), COUNTED)
    text = succeed(run_world(world, [*args, "--compile=True", *options.split()], script, SHOW="1"))
    assert re.findall("^graphs: (.*)$", text, re.M) == ["4"] * world, text
    if "clm_windows" not in options:
        assert_same_losses(out, reference, also=() if world > 1 else ("grad_norm",))


@pytest.mark.parametrize("n, shard", [(2, False), (2, True), slow(4, False)])
def test_several_processes_resume_bit_for_bit(undisturbed, train, tmp_path, n, shard):
    args, a = [*undisturbed[0], f"--shard={shard}", *"--max_steps=10 --switch_step=7".split()], tmp_path / "a"
    train(n, *args, f"--out_dir={a}")
    b = copy_up_to(5, a, tmp_path / "b")
    train(n, *args, f"--out_dir={b}", "--resume=True")
    assert_same_end(a, b, 10)


@SLOW
@pytest.mark.parametrize("options", ["--tie_embeddings=True", "--optimizer=muon"])
def test_with_shards_a_checkpoint_is_the_same_file(train, tiny, tmp_path, options):
    """Loaded weights are those without shards, bit for bit. A run goes on with shards or without."""
    args, one, two = [*tiny, *options.split(), "--checkpoint_interval=10"], tmp_path / "one", tmp_path / "two"
    train(1, *args, f"--out_dir={one}")
    x = checkpoint.load(one)
    loaded = f"--init_from={one} --lr=1e-30 --max_steps=1 {END} --out_dir={tmp_path / 'loaded'}"  # changes no weight
    train(2, *args, *loaded.split(), "--shard=True")
    torch.testing.assert_close(checkpoint.load(tmp_path / "loaded")["model"], x["model"], rtol=0, atol=0)
    for n, source, name in (2, one, "two"), (1, two, "back"):
        out = copy_up_to(10, source, tmp_path / name)
        train(n, *args, "--resume=True", f"--out_dir={out}", f"--shard={n > 1}")
        assert_same_losses(out, one, 1e-3 if "muon" in options else 1e-5)
        y = checkpoint.load(out)
        assert x.keys() == y.keys() and list(x["model"]) == list(y["model"])
        for name, its in x["optimizer"].items():
            theirs = y["optimizer"][name]
            assert its["param_groups"] == theirs["param_groups"] and its["state"].keys() == theirs["state"].keys()


@SLOW
def test_torchrun(again, tmp_path):
    """The launcher itself. A signal to it: the processes agree on a step, save it and leave; then they go on."""
    (args, out, reference), output = again, tmp_path / "output"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*launcher, "train.py", *args]
    with open(output, "w") as file:
        launcher = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
        while last_logged(out) < 2:
            assert launcher.poll() is None, output.read_text()
            time.sleep(0.001)
        launcher.terminate()
        assert launcher.wait(60) != 0
    step = int(re.search(r"Stopped at step (\d+) of 20", output.read_text())[1])
    assert checkpoint.steps(out)[-1] == step < 20
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert_same_losses(out, reference)
