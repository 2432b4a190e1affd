"""Every command in LESSON.md runs, in its order, at a small size, and every exercise's edit applies and runs."""

import os
import re
import runpy
import shlex
import shutil
import sys

import pytest

from eval.lesson import exercises
from eval.plot import read_metrics
from helpers import ROOT, TINY, Run, server

LESSON = (ROOT / "LESSON.md").read_text()
SECTIONS = {text.splitlines()[0]: text for text in re.split(r"^#{1,3} ", LESSON, flags=re.M)[1:]}
DIFFS = exercises.read_diffs(LESSON)


def commands(text):
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    return [line for line in "".join(blocks).splitlines() if line.startswith("python ")]


def small(command, data):
    """Return the script and the arguments of a command, for a tiny model: 650 steps become 20."""

    def scaled(match):
        steps = [int(step) * 20 // 650 + (match[1] == "--max_steps=") for step in match[2].split(",")]
        return match[1] + ",".join(map(str, steps))

    command = re.sub(r"(--\w+_steps?=|ckpt-)([\d,]+)", scaled, command)
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
    for command in commands("".join(text for text in SECTIONS.values() if "```diff" not in text)):
        script, args = small(command, data_dir)
        code, output = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{output}"
    return folder


def test_the_commands_that_need_no_edit(folder):
    assert [title[:7] for title in SECTIONS if title.startswith("Part")] == [f"Part {n}:" for n in range(1, 7)]
    for name in ("demo/ckpt-20.pt", "clm/ckpt-18.pt", "mlm/ckpt-20.pt", "late/ckpt-20.pt", "probe-after/result.json"):
        assert (folder / "out" / name).exists()


@pytest.mark.parametrize("number", DIFFS)
def test_an_edit_fits_the_code_and_can_be_taken_back(number, tmp_path):
    name = re.search(r"^--- a/(.*)", DIFFS[number], re.M)[1]
    copy, text = tmp_path / name, (ROOT / name).read_text()
    copy.parent.mkdir(exist_ok=True)
    copy.write_text("# a line that the reader wrote\n" + text)
    assert exercises.apply(DIFFS[number], tmp_path) == copy
    compile(copy.read_text(), name, "exec")
    assert len(re.findall(r"^[+-](?![+-])", DIFFS[number], re.M)) <= 10
    exercises.apply(DIFFS[number], tmp_path, undo=True)
    assert copy.read_text() == "# a line that the reader wrote\n" + text


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


FAST = ("2", "3")
PHASES = {"3": "cmcm", "4": "mc", "6": "cm"}  # a letter for each phase of the first training; MLM alone in the others


@pytest.mark.parametrize("number", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in DIFFS])
def test_an_exercise(number, folder, data_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(ROOT / "eval", copy / "eval")
    shutil.copytree(ROOT / "data", copy / "data", ignore=shutil.ignore_patterns("prepared", "tasks"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, copy)
    (copy / "out").symlink_to(folder / "out")
    smaller = re.sub(r"\b(650|50)\b", lambda steps: {"650": "20", "50": "3"}[steps[0]], DIFFS[number])
    (copy / "LESSON.md").write_text(LESSON.replace(DIFFS[number], smaller))

    (text,) = (text for title, text in SECTIONS.items() if title.startswith(f"Exercise {number}:"))
    phases = []  # of each training
    for command in commands(text):
        script, args = small(command, data_dir)
        if script == "eval.lesson":
            assert args[:2] == ["apply", number]
            exercises.main(args[1:], copy)
            continue
        child = server.Process(target=train_copy, args=(copy, args, tmp_path / "output"))
        child.start()
        child.join(60)
        assert child.exitcode == 0, (tmp_path / "output").read_text()
        (out,) = (arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
        letters = "".join(line["phase"][0] for line in read_metrics(copy / out)[1:])
        phases.append(re.sub(r"(.)\1+", r"\1", letters))
    assert phases[0] == PHASES.get(number, "m")
    edited = re.search(r"^--- a/(.*)", DIFFS[number], re.M)[1]
    assert (copy / edited).read_text() == (ROOT / edited).read_text()  # the last command takes the edit back
