"""Every command in LESSON.md runs, in its order, at a small size, and every solution applies, runs and can be undone."""

import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys

import pytest

from eval.plot import read_metrics
from helpers import ROOT, TINY, Run, server

LESSON = (ROOT / "LESSON.md").read_text()
PARTS = re.split(r"^#{1,3} ", LESSON, flags=re.M)[1:]
SOLUTIONS = sorted(path.stem for path in (ROOT / "eval/lesson/solutions").glob("*.patch"))


def commands(text):
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    return [line for line in "".join(blocks).splitlines() if line.startswith(("python ", "git "))]


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """The folder of a reader who has run every command that needs no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    for command in commands("".join(text for text in PARTS if "git apply" not in text)):
        script, args = small(command, data_dir)
        code, output = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{output}"
    return folder


def test_the_commands_that_need_no_edit(folder):
    assert [title[:7] for title in PARTS if title.startswith("Part")] == [f"Part {n}:" for n in range(1, 7)]
    for name in ("demo/ckpt-20.pt", "clm/ckpt-18.pt", "mlm/ckpt-20.pt", "late/ckpt-20.pt", "probe-after/result.json"):
        assert (folder / "out" / name).exists()


def git_apply(copy, *args):
    subprocess.run(["git", "apply", *args], cwd=copy, check=True)


@pytest.mark.parametrize("name", SOLUTIONS)
def test_a_solution_applies_by_content_and_can_be_undone(name, tmp_path):
    patch = ROOT / f"eval/lesson/solutions/{name}.patch"
    (edited,) = re.findall(r"^--- a/(.*)", patch.read_text(), re.M)
    copy, text = tmp_path / edited, "# a line that the reader wrote\n" * 30 + (ROOT / edited).read_text()
    copy.parent.mkdir(exist_ok=True)
    copy.write_text(text)
    git_apply(tmp_path, patch)
    compile(copy.read_text(), edited, "exec")
    assert copy.read_text() != text
    git_apply(tmp_path, "-R", patch)
    assert copy.read_text() == text


def train_copy(copy, args, output):
    """In the child: run train.py of a copy of the project. No edit touches model.py, so that one stays loaded."""
    sys.stdout = sys.stderr = open(output, "w", buffering=1)
    os.chdir(copy)
    ours = {path.stem for path in copy.iterdir()} - {"model"}
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]
    sys.path[:] = [str(copy), *(path for path in sys.path if path not in ("", str(ROOT)))]
    sys.argv = ["train.py", *args]
    runpy.run_path("train.py", run_name="__main__")
    assert sys.modules["data.loader"].__file__ == str(copy / "data" / "loader.py")


FAST = ("shifted", "alternating")
PHASES = {"alternating": "cmcmcmcmcmcm", "reversed": "mc", "detour": "cm", "few_targets": "c"}  # of the first training


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in SOLUTIONS])
def test_the_commands_with_a_solution(name, folder, data_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "eval", copy / "eval")
    shutil.copytree(ROOT / "data", copy / "data", ignore=shutil.ignore_patterns("prepared", "tasks"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, copy)
    (copy / "out").symlink_to(folder / "out")

    (text,) = (text for text in PARTS if f"solutions/{name}.patch" in text)
    phases = []  # of each training
    for command in commands(text):
        if command.startswith("git apply "):
            git_apply(copy, *shlex.split(command)[2:])
            continue
        script, args = small(command, data_dir)
        if script != "train.py":
            code, output = Run(args, tmp_path / "output", script, copy).wait()
            assert code == 0, f"{command}\n{output}"
            continue
        child = server.Process(target=train_copy, args=(copy, args, tmp_path / "output"))
        child.start()
        child.join(60)
        assert child.exitcode == 0, (tmp_path / "output").read_text()
        (out,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
        letters = "".join(line["phase"][0] for line in read_metrics(copy / out)[1:])
        phases.append(re.sub(r"(.)\1+", r"\1", letters))
    assert phases[0] == PHASES.get(name, "m")
    for edited in ("train.py", "data/loader.py"):
        assert (copy / edited).read_text() == (ROOT / edited).read_text()  # the last command takes the edit back
