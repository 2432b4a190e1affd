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
    page = (ROOT / "LESSON.md").read_text(encoding="utf-8")
    for section in re.split(r"^##+ ", page, flags=re.M):
        exercise = re.match(r"Exercise (\d+)", section)
        if exercise and int(exercise[1]) not in exercises:
            continue
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
        folder = Path()  # where commands run: here, or in an edited copy
        for command in commands(cfg.exercises):
            _, script, *args = shlex.split(command)
            if command.startswith("git apply -R"):
                folder = Path()
                continue
            if command.startswith("git apply"):
                patch = args[0]
                folder = edited_copy(patch, Path(temporary, Path(patch).stem))
                continue
            if script == "finetune.py":
                out_dir = command.split("--out_dir=")[1]
                if Path(out_dir, "result.json").exists():
                    continue
            if script == "train.py":
                args.append("--resume=True")
            print(f"\n$ {command}", flush=True)
            code = subprocess.run([sys.executable, script, *args], cwd=folder).returncode
            if code:
                sys.exit(f"stopped (status {code}) at: {command}\nTo continue, give the same command again.")
