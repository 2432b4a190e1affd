"""Run the lesson: all commands of parts 1 to 5 of LESSON.md, in their order. Start it again after an interruption.

    python -m eval.lesson all                      # everything that the text shows, and its figures
    python -m eval.lesson all --exercises=1,3      # then exercises 1 and 3

A run that is finished is not trained again. Edits from eval/lesson/solutions are made in a copy of the code.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

exercises = ()  # numbers of exercises to run after the parts

ROOT = Path(__file__).resolve().parents[2]


def commands(exercises=()):
    """Yield the commands of the parts of LESSON.md, then those of these exercises."""
    for section in re.split(r"^##+ ", (ROOT / "LESSON.md").read_text(encoding="utf-8"), flags=re.M):
        number = re.match(r"Exercise (\d+)", section)
        if not number or int(number[1]) in exercises:
            for block in re.findall(r"```sh\n(.*?)```", section, re.S):
                yield from block.splitlines()


def edited_copy(patch, copy):
    """Copy the project to a folder that uses the same out/ and data/prepared/, and apply a patch there."""
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("out", ".git", "prepared", "__pycache__"))
    for folder in ("out", "data/prepared"):
        (copy / folder).symlink_to(Path(folder).resolve())
    subprocess.run(["git", "apply", patch], cwd=copy, check=True)
    return copy


def main(cfg):
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path()
        for command in commands(cfg.exercises):
            args = shlex.split(command)
            if args[:2] == ["git", "apply"]:
                folder = Path() if args[2] == "-R" else edited_copy(args[2], Path(temporary, Path(args[2]).stem))
                continue
            if args[1] == "finetune.py" and Path(command.split("--out_dir=")[1], "result.json").exists():
                continue
            args = [sys.executable, *args[1:], *["--resume=True"] * (args[1] == "train.py")]
            print(f"\n$ {command}", flush=True)
            if code := subprocess.run(args, cwd=folder).returncode:
                sys.exit(f"stopped (status {code}) at: {command}\nTo continue, give the same command again.")
