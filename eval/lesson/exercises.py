"""Apply the diff of one of LESSON.md's exercises to the code, or take it back: see eval/lesson/__main__.py."""

import re
import sys
from pathlib import Path

from errors import DataError

ROOT = Path(__file__).resolve().parents[2]


def read_diffs(lesson):
    """Return {number: diff} for the exercises in the lesson's text that have a diff."""
    sections = re.findall(r"^### Exercise (\d+): (.*?)(?=^#|\Z)", lesson, re.S | re.M)
    return {number: diff for number, text in sections for diff in re.findall(r"^```diff\n(.*?)^```", text, re.S | re.M)}


def apply(diff, folder, undo=False):
    """Change one file in a folder as a unified diff says, whatever its line numbers. Returns the file's path.

    A hunk's unchanged and removed lines must occur together exactly once in the file. Otherwise raises DataError and
    changes nothing. undo: apply the diff backwards.
    """
    header, *hunks = re.split(r"^@@.*\n", diff, flags=re.M)
    path = Path(folder) / re.search(r"^\+\+\+ b/(.*)", header, re.M)[1]
    lines = path.read_text(encoding="utf-8").splitlines()
    removed, added = "+-" if undo else "-+"
    for hunk in hunks:
        old = [line[1:] for line in hunk.splitlines() if line[:1] != added]
        new = [line[1:] for line in hunk.splitlines() if line[:1] != removed]
        places = [i for i in range(len(lines)) if lines[i : i + len(old)] == old]
        if len(places) != 1:
            problem = f"{path}: expected these lines once, found them {len(places)} times (is the edit already made?):"
            raise DataError("\n".join([problem, *old]))
        lines[places[0] : places[0] + len(old)] = new
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main(argv, folder=ROOT):
    diffs = read_diffs((folder / "LESSON.md").read_text(encoding="utf-8"))
    if not argv or argv[0] not in diffs or argv[1:] not in ([], ["--undo"]):
        sys.exit(f"usage: python -m eval.lesson apply {'|'.join(diffs)} [--undo]")
    print(f"changed {apply(diffs[argv[0]], folder, undo='--undo' in argv)}")
