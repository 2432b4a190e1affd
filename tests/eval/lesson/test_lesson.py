"""Every command in LESSON.md runs, in its order, at a small size; every edit applies and runs too."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ROOT, TINY, Run, server
from eval.plot import read_metrics

LESSON = (ROOT / "LESSON.md").read_text()
SECTIONS = re.split(r"^#{1,3} ", LESSON, flags=re.M)[1:]  # each begins with its title


def blocks(text, kind):
    return re.findall(rf"```{kind}\n(.*?)```", text, re.S)


def commands(text):
    lines = (line.split("#")[0].strip() for block in blocks(text, "sh") for line in block.splitlines())
    return [line for line in lines if line.startswith("python ")]


EXERCISES = {s.splitlines()[0]: s for s in SECTIONS if blocks(s, "diff")}
PLAIN = [command for s in SECTIONS if s.splitlines()[0] not in EXERCISES for command in commands(s)]


def small(command, data):
    """The script and the arguments of a command: steps at 20 to 650, of a tiny model."""

    def scaled(match):
        return match[1] + ",".join(str(int(step) * 20 // 650 + (match[2] == "max_steps")) for step in match[3].split(","))

    command = re.sub(r"(--(\w+_steps?)=)([\d,]+)", scaled, command)
    command = re.sub(r"(ckpt(-))(\d+)", scaled, command)
    _, script, *args = shlex.split(command)
    if script == "train.py":
        args = [*TINY, "--switch_step=6", f"--data={data}", "--checkpoint_interval=18", "--eval_interval=20",
                *args]  # fmt: skip
    if script == "finetune.py":
        args += ["--max_steps=2", "--baseline=False"]
    if script == "eval/switch.py":
        args += ["--windows=4"]
    return script, args


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data_dir):
    """Where a reader stands who has run all commands that need no edit."""
    folder = tmp_path_factory.mktemp("lesson")
    for command in PLAIN:
        script, args = small(command, data_dir)
        code, text = Run(args, folder / "output", script, folder).wait()
        assert code == 0, f"{command}\n{text}"
    return folder


def test_the_rungs(folder):
    assert len(PLAIN) >= 9 and len([s for s in SECTIONS if s.startswith("Rung ")]) == 6
    for name in ("out/demo/ckpt-20.pt", "out/clm/ckpt-18.pt", "out/probe-before/result.json"):
        assert (folder / name).exists()


def edited(copy, args, output):
    """In the child: train.py of an edited copy. What is loaded already is of the unedited one; model.py no edit touches."""
    sys.stdout = sys.stderr = open(output, "w", buffering=1)
    os.chdir(copy)
    for name in [name for name in sys.modules if re.match(r"(train|finetune|checkpoint|configurator|data|eval)\b", name)]:
        del sys.modules[name]
    sys.path.insert(0, str(copy))
    sys.argv = ["train.py", *args]
    import train

    assert Path(train.__file__).parent == copy
    train.main()


@pytest.mark.skipif(not shutil.which("git"), reason="needs git apply")
@pytest.mark.parametrize("title", EXERCISES)
def test_an_exercise(title, folder, data_dir, tmp_path):
    copy = tmp_path / "copy"
    for part in ("data", "eval"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("prepared", "results", "__pycache__"))
    for file in ROOT.glob("*.py"):
        shutil.copy(file, copy)
    (diff,) = blocks(EXERCISES[title], "diff")
    changed = [line for line in diff.splitlines() if re.match(r"[+-](?![+-]{2} )", line)]
    assert len(changed) <= 10 and "model.py" not in diff
    shorter = re.sub(r"\b(650|50)\b", lambda number: {"650": "20", "50": "3"}[number[0]], diff)
    subprocess.run(["git", "apply", "-"], cwd=copy, input=shorter, text=True, check=True)

    (copy / "out").symlink_to(folder / "out")
    phases = []  # of each command, a letter for each change
    for command in commands(EXERCISES[title]):
        _, args = small(command, data_dir)
        child = server.Process(target=edited, args=(copy, args, tmp_path / "output"))
        child.start()
        child.join(60)
        assert child.exitcode == 0, (tmp_path / "output").read_text()
        (out,) = (copy / arg.removeprefix("--out_dir=") for arg in args if arg.startswith("--out_dir="))
        of_steps = "".join(line["phase"][0] for line in read_metrics(out)[1:])
        phases.append(re.sub(r"(.)\1+", r"\1", of_steps))
    assert phases[0] == {"Phases in turn": "cmcm", "MLM, then CLM": "mc", "A causal detour": "cm"}.get(title.split(": ")[1], "m")
