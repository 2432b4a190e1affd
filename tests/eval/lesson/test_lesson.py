"""Every command of the lesson and its exercises runs, in order, at a small size; every solution does what it says."""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

import model
from data.loader import Batches, TokenStream
from data.objective import CLM, phase_of
from data.shards import load_meta
from data.tokenizer import Tokenizer
from eval.plot import read_metrics
from helpers import ROOT, TINY, Run

LESSON = (ROOT / "LESSON.md").read_text()
EXERCISES = (ROOT / "docs/exercises.md").read_text()
DIFFS = re.findall(r"```diff\n(.*?)```", LESSON, re.S)


def commands(text):
    """The commands of a page's shell blocks."""
    return "".join(re.findall(r"```sh\n(.*?)```", text, re.S)).splitlines()


EDITS = [commands(section)[0] for section in re.split("^### Edit", LESSON, flags=re.M)[1:]]  # what trains each edit


def small(command, data):
    """Return the script and the arguments of a command, for a tiny model: 650 steps become 20."""

    def scaled(match):
        return match[1] + ",".join(str(int(step) * 20 // 650) for step in match[2].split(","))

    _, script, *args = shlex.split(re.sub(r"(--\w+_steps?=|ckpt-)([\d,]+)", scaled, command).replace(" -m ", " "))
    if script == "train.py":
        sizes = [*TINY, "--switch_step=6", "--checkpoint_interval=18", "--eval_interval=20", f"--data={data}"]
        args = sizes + args
    if script == "finetune.py":
        args += ["--max_steps=2", "--baseline=False"]
    return script, args


def start_all(some_commands, folder, data):
    """Start commands that need no edit, at a small size."""
    for command in some_commands:
        script, args = small(command, data)
        code, output = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{output}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """The folder of a reader who has run every command of the lesson that needs no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    start_all([command for command in commands(LESSON) if command not in EDITS], folder, data_dir)
    return folder


@pytest.mark.slow
def test_the_commands_of_the_lesson(folder):
    for name in ("lesson/ckpt-20.pt", "clm/ckpt-18.pt", "mlm/ckpt-20.pt", "per_token.png", "gallery/index.html"):
        assert (folder / "out" / name).exists()


@pytest.mark.slow
def test_the_commands_of_the_exercises(folder, data_dir):
    start_all(commands(EXERCISES), folder, data_dir)
    assert (folder / "out/late/ckpt-20.pt").exists()
    assert {line["phase"] for line in read_metrics(folder / "out/mixed")} == {"clm + mlm"}


def edited(diff, folder):
    """Copy the code to a folder and apply a diff there."""
    names = "*.py", "*.html", "config", "data", "eval"
    ignored = shutil.ignore_patterns("prepared", "__pycache__")
    for path in (path for name in names for path in ROOT.glob(name)):
        if path.is_dir():
            shutil.copytree(path, folder / path.name, ignore=ignored)
        else:
            shutil.copy(path, folder)
    subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    return folder


def test_edit_1_hides_the_right_from_both(tmp_path):
    mask = runpy.run_path(str(edited(DIFFS[0], tmp_path) / "model.py"))["attention_mask"]
    assert torch.equal(mask(5, False), model.attention_mask(5, True)) and torch.equal(mask(5, True), mask(5, False))


def test_edit_2_keeps_40_percent_of_the_targets(tmp_path, data_dir):
    few = runpy.run_path(str(edited(DIFFS[1], tmp_path) / "data/objective.py"))["CLM"]()
    meta = load_meta(data_dir)
    batches = Batches([TokenStream(data_dir, meta, "train")], Tokenizer.load("embedded"), 1, 60, 8)
    batch, whole = batches.batch(3, few), batches.batch(3, CLM())
    kept = batch["targets"] >= 0
    assert torch.equal(batch["tokens"], whole["tokens"]) and kept.sum() == 8 * 24
    assert torch.equal(batch["targets"][kept], whole["targets"][batch["positions"][kept]])


def test_edit_3_swaps_the_phases(tmp_path):
    objective = runpy.run_path(str(edited(DIFFS[2], tmp_path) / "train.py"))["objective"]
    cfg = SimpleNamespace(
        switch_step=2, max_steps=4, mask_ratio=(0.4,), predict_from="mask", mask_proportions=(1, 0, 0)
    )
    names = [phase_of({objective(step, 0, 8, cfg): [0]}) for step in range(4)]
    assert names == ["mlm", "mlm", "clm", "clm"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_the_command_of_an_edit(number, folder, data_dir, tmp_path):
    script, args = small(EDITS[number], data_dir)
    copy = edited(DIFFS[number], tmp_path)
    subprocess.run([sys.executable, copy / script, *args], cwd=folder, check=True)
    (out_dir,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
    phases = [line["phase"] for line in read_metrics(folder / out_dir)]
    assert phases[-1] == ["mlm", "clm", "clm"][number]
