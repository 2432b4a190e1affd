"""Prepared folders: written whole or not at all, gone on with after a kill, read, verified.

While OUT is written, OUT.partial holds OUT to be, hashes.bin (of the documents so far, where duplicates are dropped)
and state.json: the settings, the input files that are done, and how much of each open file there was then. Only that
counts when another process goes on: what is in the folder beyond it is cut off.
"""
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from data.tokenizer import Tokenizer
from errors import DataError

COMMIT_SECONDS = 1  # at least, between two writings of state.json


def sync(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


class ShardWriter:
    """Writes arrays of tokens to <split>-00000.bin, <split>-00001.bin, ... of shard_tokens tokens each, the last one
    excepted, and lists them in `record`, the entry of the split in meta["splits"].

    beginning: so many tokens of the first shard that is not listed yet are in the folder already.
    """

    def __init__(self, folder, split, shard_tokens, record, dtype, beginning=0):
        self.folder, self.split, self.shard_tokens, self.record = folder, split, shard_tokens, record
        self.file, self.tokens = None, 0
        if beginning:
            self.open("r+b")
            self.file.truncate(beginning * np.dtype(dtype).itemsize)
            while block := self.file.read(1 << 20):
                self.sha256.update(block)
            self.tokens = beginning

    def open(self, mode):
        self.path = self.folder / f"{self.split}-{len(self.record['shards']):05d}.bin"
        self.file, self.sha256 = open(self.path, mode), hashlib.sha256()

    def write(self, tokens):
        self.record["tokens"] += len(tokens)
        while len(tokens):
            if self.file is None:
                self.open("wb")
            room = self.shard_tokens - self.tokens
            part, tokens = tokens[:room], tokens[room:]
            self.file.write(part)
            self.sha256.update(part)
            self.tokens += len(part)
            if self.tokens == self.shard_tokens:
                self.close()

    def close(self):
        if self.file is not None:
            self.file.close()
            sync(self.path)
            shard = {"file": self.path.name, "tokens": self.tokens, "sha256": self.sha256.hexdigest()}
            self.record["shards"].append(shard)
            self.file, self.tokens = None, 0


@contextlib.contextmanager
def partial_folder(out):
    """The folder in which `out` is written, for this process alone. Raises DataError if another one has it."""
    partial = out.with_name(f"{out.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends, however it does
        yield partial
    except BlockingIOError:
        raise DataError(f"{partial}: another process is preparing {out}") from None
    finally:
        os.close(descriptor)


class Output:
    """The folder `out` in the making, in `partial`: write() batch by batch, then finish(), all in a `with`.

    plan: {setting: value} of all that decides what is written, but for the input files: [name, size, split, time of
        change] of each in `files`.
    meta: meta.json without tokens yet.
    What an earlier process has left of the same plan is gone on with: then so many files are `finished`, and `meta`
    and hashes() are as after them. If it is of another plan, or one of its input files has changed, that is a
    DataError; with `overwrite` it is removed.
    """

    def __init__(self, out, partial, plan, files, shard_tokens, meta, overwrite):
        self.out, self.partial, self.plan, self.files = out, partial, plan, files
        self.folder = partial / out.name
        left = self.left(overwrite)
        if left is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            (partial / "state.json").unlink(missing_ok=True)
            self.folder.mkdir()
        state = left or {"files": [], "meta": meta, "tokens": {}, "hashes": 0}
        self.finished, self.meta, self.splits = len(state["files"]), state["meta"], state["meta"]["splits"]
        self.full, self.committed = False, time.monotonic()
        listed = {shard["file"] for record in self.splits.values() for shard in record["shards"]}
        self.writers = {
            split: ShardWriter(self.folder, split, shard_tokens, record, meta["dtype"], state["tokens"].get(split, 0))
            for split, record in self.splits.items()
        }
        for path in self.folder.iterdir():
            if path.name not in listed and path not in [writer.path for writer in self.writers.values() if writer.file]:
                path.unlink()  # written after the last commit
        self.hash_file = open(partial / "hashes.bin", "ab")
        self.hash_file.truncate(8 * state["hashes"])
        self.hash_file.seek(0, os.SEEK_END)

    def hashes(self):
        """The hashes of the documents that are written."""
        return np.fromfile(self.hash_file.name, np.uint64)

    def left(self, overwrite):
        """What state.json says, None if it is not there; raises DataError if it does not fit."""
        try:
            state = json.loads((self.partial / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        if not self.folder.is_dir():  # it is in its place already
            return None
        count = len(state["files"])
        differ = [name for name, value in self.plan.items() if state["plan"].get(name) != value]
        changed = [file[0] for i, file in enumerate(state["files"]) if file not in self.files[i : i + 1]]
        if not differ and not changed:
            return state
        if overwrite:
            return None
        why = (f"with another {', '.join(differ)}: go on with the same settings" if differ else
               f"but {changed[0]}, one of them, has changed since or is not in its place: put it back")  # fmt: skip
        raise DataError(f"{self.partial} holds an unfinished preparation, {count} input files done, {why}, or begin "
                        "anew with --overwrite=True")

    def write(self, batch, tokens, lengths, max_tokens=0):
        """Add a data.prepare.Batch: tokens (n,), and how many of them each document has. It is `full` from the first
        document on with which train had more than max_tokens."""
        is_val, count = np.array(batch.is_val, bool), len(lengths)
        if max_tokens:
            total = self.splits["train"]["tokens"] + np.cumsum(np.where(is_val, 0, lengths))
            count = int(np.searchsorted(total, max_tokens, "right"))
            self.full = count < len(lengths)
        for split, mine in ("train", ~is_val), ("val", is_val):
            mine[count:] = False
            self.splits[split]["documents"] += int(mine.sum())
            self.splits[split]["bytes"] += int(np.array(batch.sizes, np.int64)[mine].sum())
            self.writers[split].write(tokens[np.repeat(mine, lengths)])
        for why, number in batch.dropped.items():
            self.meta[f"skipped_{why}"] += number
        self.hash_file.write(batch.hashes)
        if batch.finished and not self.full and time.monotonic() - self.committed >= COMMIT_SECONDS:
            self.commit(batch.finished)

    def commit(self, finished):
        """Let another process go on after so many files."""
        for writer in self.writers.values():
            if writer.file:
                writer.file.flush()
                sync(writer.path)
        self.hash_file.flush()
        sync(self.hash_file.name)
        tokens = {split: writer.tokens for split, writer in self.writers.items()}
        state = {"plan": self.plan, "files": self.files[:finished], "meta": self.meta, "tokens": tokens,
                 "hashes": self.hash_file.tell() // 8}  # fmt: skip
        new = self.partial / "state.json.new"
        new.write_text(json.dumps(state), encoding="utf-8")
        for path in new, self.folder:
            sync(path)
        new.replace(self.partial / "state.json")
        sync(self.partial)
        self.committed = time.monotonic()

    def finish(self, rank_bytes):
        """Complete the folder and put it in its place."""
        for split, writer in self.writers.items():
            writer.close()
            if not self.splits[split]["documents"]:
                (self.partial / "state.json").unlink(missing_ok=True)
                count = self.splits["train"]["documents"] + self.splits["val"]["documents"]
                skipped = ", ".join(f"{self.meta[key]} {key}" for key in self.meta if key.startswith("skipped_"))
                raise DataError(
                    f"no document is left for the {split} split: {count} found ({skipped}), two blank lines apart in "
                    "text; give another val_source, or a larger val_fraction"
                )
        self.meta["fingerprint"] = fingerprint(self.meta, rank_bytes)
        (self.folder / "tokenizer.tiktoken").write_bytes(rank_bytes)
        (self.folder / "meta.json").write_text(json.dumps(self.meta, indent=1), encoding="utf-8")
        for path in (self.folder / "tokenizer.tiktoken", self.folder / "meta.json", self.folder):
            sync(path)
        if self.out.exists():
            self.out.rename(replaced(self.out))
        self.folder.rename(self.out)
        sync(self.out.parent)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        """Unless it is in its place, keep what can be gone on with, and nothing else."""
        for file in self.hash_file, *(writer.file for writer in self.writers.values()):
            with contextlib.suppress(OSError, AttributeError):  # it is cut off; or closed
                file.close()
        if self.folder.exists() and (self.partial / "state.json").exists():
            print(f"{self.partial} keeps what is done: the same command goes on from there", file=sys.stderr)
        else:
            shutil.rmtree(self.partial, ignore_errors=True)
        put_back(self.out)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise DataError(f"the disk is full: {self.out} was not written") from error


def replaced(out):
    """The name of an older `out` while the new one takes its place."""
    return out.with_name(f"{out.name}.replaced")


def put_back(out):
    """After a process that stopped between the two renames of finish(): the older folder, if there is no newer."""
    if replaced(out).exists() and not out.exists():
        replaced(out).rename(out)
    shutil.rmtree(replaced(out), ignore_errors=True)


def fingerprint(meta, rank_bytes):
    """One checksum of all that a training run reads: the tokenizer and the shards."""
    shards = [shard["sha256"] for split in ("train", "val") for shard in meta["splits"][split]["shards"]]
    parts = [meta["tokenizer"], hashlib.sha256(rank_bytes).hexdigest(), shards]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def load_meta(folder):
    """Return the meta.json of a prepared folder after a look at the sizes of its shards (for their content, see
    verify_folder). Raises DataError if the folder is missing, is something else, or has lost a part."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; prepare it: python data/prepare.py --source=... --out={folder}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        raise DataError(f"{folder} is not a folder that data/prepare.py has written: no readable meta.json") from None
    if meta.get("format") != 1:
        raise DataError(f"{folder} has format {meta.get('format')}, known is 1: prepare it again with --overwrite=True")
    for record in meta["splits"].values():
        for shard in record["shards"]:
            path, size = folder / shard["file"], shard["tokens"] * np.dtype(meta["dtype"]).itemsize
            if not path.is_file() or path.stat().st_size != size:
                raise DataError(f"{path} is missing or not {size} bytes long: prepare it again with --overwrite=True")
    return meta


def load_tokenizer(folder, meta):
    """The Tokenizer of a prepared folder, whose meta.json `load_meta` has returned."""
    return Tokenizer.from_state(meta["tokenizer"], Path(folder, "tokenizer.tiktoken").read_bytes())


def verify_folder(folder):
    """Raise DataError unless all checksums of a prepared folder are right."""
    meta = load_meta(folder)
    for record in meta["splits"].values():
        for shard in record["shards"]:
            content = np.memmap(Path(folder, shard["file"]), mode="r")
            if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                raise DataError(f"{Path(folder, shard['file'])} has changed since it was written: prepare it again")
    if fingerprint(meta, Path(folder, "tokenizer.tiktoken").read_bytes()) != meta["fingerprint"]:
        raise DataError(f"{folder}: the tokenizer or meta.json has changed since it was written: prepare it again")
