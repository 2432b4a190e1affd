"""Checkpoints: on disk whole or absent, checked when they are read.

A checkpoint is one file, out_dir/ckpt-<step>.pt: a dict of tensors and plain values that
torch.load opens with weights_only=True. It is a zip archive whose every record carries a
CRC-32; torch.load does not look at those, so `load` does.
"""

import json
import os
import re
import zipfile
from pathlib import Path

import torch


def path_of(out_dir, step):
    return Path(out_dir) / f"ckpt-{step}.pt"


def steps(out_dir):
    """The steps of the checkpoints in out_dir, ascending. Only names are read."""
    names = (re.fullmatch(r"ckpt-(\d+)\.pt", p.name) for p in Path(out_dir).glob("ckpt-*.pt"))
    return sorted(int(m[1]) for m in names if m)


def write_whole(path, write):
    """Calls write(file) on a file aside, syncs it and renames it to path: all of it or nothing.

    An error (a full disk, say) leaves what was at path before, and nothing aside.
    """
    path = Path(path)
    aside = path.with_name(path.name + ".partial")
    try:
        with open(aside, "wb") as f:
            write(f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself survives a power cut
    finally:
        os.close(folder)


def save(path, state):
    """Writes a dict of tensors and plain values. OSError where the disk is full."""
    try:
        write_whole(path, lambda f: torch.save(state, f))
    except RuntimeError as error:  # torch's zip writer raises this on top of the file's own error
        raise error.__context__ or error


class Damaged(Exception):
    """A checkpoint that cannot be trusted. The message names the file and the fault."""


def verify(path):
    """Raises Damaged where the file is not a whole checkpoint: every record's checksum is computed."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a broken archive shows itself in many ways
        raise Damaged(f"{path} is damaged or not a checkpoint ({error})") from error
    if bad:
        raise Damaged(f"{path} is damaged: the checksum of its record {bad} is wrong")


def load(path, verified=False):
    """The dict that `save` wrote, its tensors on the CPU. Raises Damaged, or FileNotFoundError.

    verified: `verify` has just been called, here or by another process; not again.
    """
    if not verified:
        verify(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def newest(out_dir, report=print):
    """The path of the newest checkpoint that is whole, or None. Damaged ones are reported."""
    for step in reversed(steps(out_dir)):
        try:
            verify(path_of(out_dir, step))
            return path_of(out_dir, step)
        except Damaged as error:
            report(f"{error}; trying the one before it.")
    return None


def prune(out_dir, keep_last, keep_steps):
    """Deletes all but the newest `keep_last` checkpoints and those at `keep_steps`."""
    for step in steps(out_dir)[:-keep_last]:
        if step not in keep_steps:
            path_of(out_dir, step).unlink()


class MetricsLog:
    """A run's metrics.jsonl: a JSON object a line, appended as the run goes.

    after: the step of the checkpoint that the run goes on from; what the log says about
    later steps is cut, because they will be done again. -1 begins the log anew.
    """

    def __init__(self, path, after=-1):
        lines = Path(path).read_bytes().splitlines(keepends=True) if after >= 0 else []
        kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= after]
        write_whole(path, lambda f: f.writelines(kept))
        self.file = open(path, "a", encoding="utf-8")

    def write(self, **values):
        self.file.write(json.dumps(values) + "\n")
        self.file.flush()

    def sync(self):
        """Returns when all lines are on the disk. Called before a checkpoint is written."""
        os.fsync(self.file.fileno())
