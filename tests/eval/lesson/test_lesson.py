"""Every command in LESSON.md runs, in its order, at a small size, and every solution applies, runs and can be undone."""

import re
import runpy
import shlex
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import configurator
from data.loader import Batches
from data.objective import CLM, MLM
from eval.lesson import course
from eval.plot import read_metrics
from helpers import ROOT, TINY, Run

LESSON = (ROOT / "LESSON.md").read_text()
SOLUTIONS = sorted(path.stem for path in (ROOT / "eval/lesson/solutions").glob("*.patch"))


def blocks(text=LESSON):
    """Yield the commands of each block of a text, and the solution that they apply."""
    for block in re.findall(r"```sh\n(.*?)```", text, re.S):
        found = re.search(r"git apply eval/lesson/solutions/(\w+)", block)
        yield block.splitlines(), found and found[1]


def small(command, data):
    """Return the script and the arguments of a command, for a tiny model: 650 steps become 20."""

    def scaled(match):
        steps = [int(step) * 20 // 650 + (match[1] == "--max_steps=") for step in match[2].split(",")]
        return match[1] + ",".join(map(str, steps))

    command = re.sub(r"(--\w+_steps?=|--warmup_start=|ckpt-)([\d,]+)", scaled, command)
    _, script, *args = shlex.split(command.replace(" -m ", " "))
    if script == "train.py":
        sizes = [*TINY, "--switch_step=6", "--checkpoint_interval=18", "--eval_interval=20", f"--data={data}"]
        args = sizes + args
    if script == "finetune.py":
        args += ["--max_steps=2", "--baseline=False"]
    return script, args


PARTS, EXERCISES = ([*blocks(text)] for text in LESSON.split("## Part 6"))


def start_all(some_blocks, folder, data):
    """Start the commands that need no edit, at a small size."""
    for command in (command for its, solution in some_blocks if not solution for command in its):
        script, args = small(command, data)
        code, output = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{output}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """The folder of a reader who has run every command of the parts that needs no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    (folder / "data" / "prepared").mkdir(parents=True)
    start_all(PARTS, folder, data_dir)
    return folder


def test_the_commands_of_the_parts(folder):
    assert re.findall(r"^## Part (\d):", LESSON, re.M) == list("123456")
    for name in ("lesson/ckpt-20.pt", "clm/ckpt-18.pt", "mlm/ckpt-20.pt", "probe-after/result.json"):
        assert (folder / "out" / name).exists()


@pytest.mark.slow
def test_the_commands_of_exercises_without_an_edit(folder, data_dir):
    start_all(EXERCISES, folder, data_dir)
    assert (folder / "out/late/ckpt-20.pt").exists()
    assert {line["phase"] for line in read_metrics(folder / "out/mixed")} == {"clm + mlm"}


def test_all_resumes_each_run_edits_a_copy_and_stops_at_an_error(tmp_path, monkeypatch):
    patch, started = "eval/lesson/solutions/few_targets.patch", []
    its = ["python train.py", f"git apply {patch}", "python train.py --few_targets=True", f"git apply -R {patch}"]
    its += ["python finetune.py --out_dir=done", "python finetune.py --out_dir=todo", "python -m eval.lesson switch"]

    def record(args, cwd):
        started.append((cwd.name, *args[1:]))
        return SimpleNamespace(returncode=3 * ("todo" in args[-1]))

    monkeypatch.chdir(tmp_path)
    (tmp_path / "done").mkdir()
    (tmp_path / "done" / "result.json").touch()
    assert list(course.commands((3,)))[-1] == "python train.py --switch_step=0 --clm_windows=0.25 --out_dir=out/mixed"
    monkeypatch.setattr(subprocess, "run", record)
    monkeypatch.setattr(course, "edited_copy", lambda patch, copy: copy)
    monkeypatch.setattr(course, "commands", lambda exercises: its)
    with pytest.raises(SystemExit, match="stopped .status 3. at: python finetune.py --out_dir=todo"):
        course.main(configurator.load(course.__file__, []))
    edited = ("few_targets", "train.py", "--few_targets=True", "--resume=True")
    assert started == [("", "train.py", "--resume=True"), edited, ("", "finetune.py", "--out_dir=todo")]


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_applies(name):
    subprocess.run(["git", "apply", "--check", f"eval/lesson/solutions/{name}.patch"], cwd=ROOT, check=True)


class Letters:
    """A TokenStream of 1,000 windows without special tokens."""

    def __len__(self):
        return 1000 * 64

    def windows(self, index, T):
        return 10 + (index[:, None] + np.arange(T)) % 26


def batches(name, folder):
    """Return the Batches of a solution; of the project without one."""
    source = course.edited_copy(f"eval/lesson/solutions/{name}.patch", folder / "copy") if name else ROOT
    tokenizer = SimpleNamespace(mask_id=0, eos_id=1, ordinary_ids=np.arange(10, 36), special_tokens={"": 0})
    objective = SimpleNamespace(**runpy.run_path(str(source / "data" / "objective.py")))
    return Batches([Letters()], tokenizer, 1, 64, 64), objective


def test_spans_hide_as_many_tokens_in_runs_of_three(tmp_path):
    spans, objective = batches("spans", tmp_path)
    tokens = spans.batch(3, objective.MLM(0.4))["tokens"]
    hidden = (tokens == 0).numpy()
    assert (hidden.sum(1) == 26).all()  # round(0.4 * 64) of each window
    runs = [len(run) for row in hidden for run in "".join(np.where(row, "x", " ")).split()]
    assert np.mean(np.array(runs) % 3 == 0) > 0.7  # the others are cut: by the window, or as the last span
    starts = [(np.flatnonzero(row[1:] & ~row[:-1]) + 1) % 3 for row in hidden]
    assert all(len(set(its)) == 1 for its in starts) and len({its[0] for its in starts}) == 3  # windows differ


def test_uniform_draws_a_ratio_for_each_window_and_keeps_the_shape(tmp_path):
    uniform, objective = batches("uniform", tmp_path)
    batch = uniform.batch(3, objective.MLM(0.8))
    n = (batch["tokens"] == 0).sum(1)
    assert n.min() < 8 and n.max() > 44 and n.max() <= 51 and 20 < n.float().mean() < 32  # from 1 to 51 of 64
    assert len(batch["positions"]) == 64 * 51 and (batch["targets"] >= 0).sum() == n.sum()
    again = uniform.batch(3, objective.MLM(0.8), [5, 40])  # a part of the step, as another process has it
    assert (again["tokens"] == batch["tokens"][[5, 40]]).all()


def test_few_targets_are_those_of_mlm_with_the_input_of_clm(tmp_path):
    edited, objective = batches("few_targets", tmp_path)
    few = edited.batch(3, objective.CLM(0.4))
    plain, _ = batches(None, tmp_path)
    clm, mlm = plain.batch(3, CLM()), plain.batch(3, MLM(0.4))
    assert (few["tokens"] == clm["tokens"]).all()
    predicted = few["targets"] >= 0
    positions, targets = few["positions"][predicted], few["targets"][predicted]
    assert (clm["targets"][positions] == targets).all()
    assert set((positions + 1).tolist()) == {i for i in mlm["positions"].tolist() if i % 64}


FAST = ("alternating",)
PHASES = {"alternating": "cmcmcmcmcmcm", "reversed": "mc", "detour": "cm", "few_targets": "c"}  # of the first training


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SOLUTIONS])
def test_the_commands_with_a_solution(name, folder, data_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    ((commands, _),) = (block for block in blocks() if block[1] == name)
    patch, phases, copy = f"eval/lesson/solutions/{name}.patch", [], None
    for command in commands:
        if command.startswith("git apply"):
            assert command == f"git apply {'-R ' * bool(copy)}{patch}"  # the edit, and later its end
            copy = course.edited_copy(patch, tmp_path / "copy") if copy is None else ROOT
            continue
        script, args = small(command, data_dir)
        if script != "train.py" or copy is ROOT:
            code, output = Run(args, tmp_path / "output", script, folder).wait()
            assert code == 0, f"{command}\n{output}"
            continue
        subprocess.run([sys.executable, copy / script, *args], check=True)
        (out,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
        letters = "".join(line["phase"][0] for line in read_metrics(out)[1:])
        phases.append(re.sub(r"(.)\1+", r"\1", letters))
    assert copy is ROOT and phases[0] == PHASES.get(name, "m")
