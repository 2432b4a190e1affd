"""Prepared folders: write one whole or not at all, go on after a kill, read and verify it.

While OUT is written, the folder OUT.partial holds the new folder, digests.bin (of the documents, to find duplicates)
and progress.json: its own checksum, the input files that are done, and meta.json as it was after the last of them. A
process that goes on reads progress.json and cuts off everything that was written later. The file
OUT.partial/prepare.lock is locked all the time. It also marks the folder as ours: another OUT.partial is left alone.
An OUT that exists is never replaced.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from data.files import MALFORMED, lock_folder, sync, write_whole
from data.tokenizer import Tokenizer
from errors import DataError

COMMIT_SECONDS = 1  # progress.json is written at most this often
LOCK = "prepare.lock"


def check_out(out):
    """Raise DataError if `out` exists."""
    if os.path.lexists(out):
        raise DataError(f"{out} exists: choose another --out, or remove it")


@contextlib.contextmanager
def unfinished_folder(out, *args):
    """Yield the Output that writes `out`, for this process alone; the arguments are those of Output.

    After an error, OUT.partial stays if another process can continue it. Raises DataError if another process is
    writing the same folder, or if OUT.partial is something else.
    """
    partial = out.with_name(f"{out.name}.partial")
    names = os.listdir(partial) if partial.exists() else []
    if names and LOCK not in names:
        raise DataError(f"{partial} is in the way, and no preparation made it (it has no {LOCK}): choose another --out")
    with lock_folder(partial, LOCK):
        output = Output(out, partial, *args)
        try:
            yield output
        finally:
            if output.folder.exists() and output.progress_file.exists():
                print(f"{partial} keeps what is done: the same command continues from there", file=sys.stderr)
            else:
                output.clear()
                shutil.rmtree(partial, ignore_errors=True)  # with the lock, so that what a kill leaves of it is marked


class Output:
    """Write a prepared folder in `partial`, and move it to `out` when it is complete.

    plan: {setting: value} of everything that decides the content, except the input files.
    files: [name, size, split, time of change] of each input file.
    meta: meta.json of a folder without tokens.

    If `partial` holds the progress of the same plan, then `finished` input files are done, and `meta` and digests()
    are as they were after the last of them. The progress of another plan, or of input files that have changed since,
    raises DataError.
    """

    def __init__(self, out, partial, plan, files, meta):
        self.out, self.plan, self.files, self.folder = out, plan, files, partial / out.name
        self.progress_file, self.digest_file = partial / "progress.json", partial / "digests.bin"
        self.full, self.committed, self.changed = False, time.monotonic(), set()
        check_out(out)
        if self.progress_file.exists() and self.folder.exists():  # without the folder: it was moved to its place
            progress = self.load_progress()
        else:
            self.clear()
            self.folder.mkdir()
            self.digest_file.touch()
            progress = {"files": [], "meta": meta}
        self.finished, self.meta, self.splits = len(progress["files"]), progress["meta"], progress["meta"]["splits"]

    def clear(self):
        """Delete everything in OUT.partial but the lock."""
        for file in self.progress_file, self.digest_file:
            file.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def load_progress(self):
        """Return what progress.json holds, and remove what was written later. Raises DataError if it does not fit."""
        partial = self.folder.parent
        anew = f"or remove {partial} to start anew"
        digest, _, content = self.progress_file.read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != digest:
            raise DataError(f"{self.progress_file} is damaged: choose another --out, {anew}")
        progress = json.loads(content)
        meta, finished = progress["meta"], progress["files"]
        differing = [name for name, value in self.plan.items() if progress["plan"].get(name) != value]
        differing += [file[0] for i, file in enumerate(finished) if file not in self.files[i : i + 1]]
        if differing:
            was = f"an unfinished preparation in which this was different: {', '.join(differing[:5])}"
            raise DataError(f"{partial} holds {was}; continue with the same input, {anew}")
        documents = sum(record["documents"] for record in meta["splits"].values())
        sizes = shard_sizes(self.folder, meta)
        sizes[self.digest_file] = 8 * documents if self.plan["deduplicate"] else 0
        for path, size in sizes.items():
            if not path.is_file() or path.stat().st_size < size:
                raise DataError(f"{path} is missing or shorter than {size} bytes: choose another --out, {anew}")
            os.truncate(path, size)
        for path in self.folder.iterdir():
            if path not in sizes:
                path.unlink()
        return progress

    def digests(self):
        """Return the digests of the documents that are written: a set of 8 bytes each."""
        data = self.digest_file.read_bytes()
        return {data[i : i + 8] for i in range(0, len(data), 8)}

    def write(self, batch, tokens, lengths):
        """Add a data.prepare.Batch: the tokens (n,) of all its documents, and the number of tokens of each.

        Sets `full` and stops before the document with which train would have more than max_tokens.
        """
        is_val = np.array([document.is_val for document in batch.documents], bool)
        sizes = np.array([document.size for document in batch.documents], np.int64)
        fits = np.ones(len(lengths), bool)
        if self.plan["max_tokens"]:
            train_tokens = self.splits["train"]["tokens"] + np.cumsum(np.where(is_val, 0, lengths))
            fits = train_tokens <= self.plan["max_tokens"]
            self.full = not fits.all()
        for split, chosen in ("train", fits & ~is_val), ("val", fits & is_val):
            self.splits[split]["documents"] += int(chosen.sum())
            self.splits[split]["bytes"] += int(sizes[chosen].sum())
            self.append(split, tokens[np.repeat(chosen, lengths)])
        for reason, number in batch.dropped.items():
            self.meta[f"skipped_{reason}"] += number
        if self.plan["deduplicate"]:
            self.extend(self.digest_file, b"".join(document.digest for document in batch.documents))
        if batch.finished and not self.full and time.monotonic() - self.committed >= COMMIT_SECONDS:
            self.commit(batch.finished)

    def append(self, split, tokens):
        """Append tokens (n,) to the shards of a split."""
        record, shard_tokens = self.splits[split], self.plan["shard_tokens"]
        shards = record["shards"]
        while len(tokens):
            if not shards or shards[-1]["tokens"] == shard_tokens:
                shards.append({"file": f"{split}-{len(shards):05d}.bin", "tokens": 0})
            part, tokens = np.split(tokens, [shard_tokens - shards[-1]["tokens"]])
            self.extend(self.folder / shards[-1]["file"], part)
            shards[-1]["tokens"] += len(part)
            record["tokens"] += len(part)

    def extend(self, path, data):
        with open(path, "ab") as file:
            file.write(data)
        self.changed.add(path)

    def commit(self, finished):
        """Let another process go on after so many input files."""
        for path in *self.changed, self.folder:
            sync(path)
        progress = json.dumps({"plan": self.plan, "files": self.files[:finished], "meta": self.meta}).encode()
        digest = hashlib.sha256(progress).hexdigest().encode()
        write_whole(self.progress_file, lambda file: file.write(digest + b"\n" + progress))
        self.committed, self.changed = time.monotonic(), set()

    def finish(self, tokenizer):
        """Complete the folder and move it to its place."""
        for split, record in self.splits.items():
            if record["tokens"] == record["documents"]:  # one eos for each
                self.progress_file.unlink(missing_ok=True)  # going on would not help
                skipped = ", ".join(
                    f"{value} {key.replace('_', ' ')}" for key, value in self.meta.items() if key.startswith("skipped_")
                )
                hint = "two blank lines end a document in text; give another val_source or val_fraction"
                raise DataError(f"no text is left for the {split} split ({skipped}): {hint}")
        self.commit(len(self.files))  # a process that is killed from here on leaves only this function to do
        for path, shard in shard_files(self.folder, self.meta):
            shard["sha256"] = sha256(path)
        self.meta["fingerprint"] = fingerprint(self.meta, tokenizer.file_bytes())
        write_whole(self.folder / tokenizer.file_name, lambda file: file.write(tokenizer.file_bytes()))
        write_whole(self.folder / "meta.json", lambda file: file.write(json.dumps(self.meta, indent=1).encode()))
        check_out(self.out)  # again: the preparation may have taken days
        self.folder.rename(self.out)
        sync(self.out.parent)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def sha256(path):
    return hashlib.sha256(np.memmap(path, mode="r")).hexdigest()


def fingerprint(meta, file_bytes):
    """Return one checksum of all that a training run reads: the tokenizer and the shards."""
    shards = [shard["sha256"] for split in ("train", "val") for shard in meta["splits"][split]["shards"]]
    parts = [meta["tokenizer"], hashlib.sha256(file_bytes).hexdigest(), shards]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load_meta(folder):
    """Return meta.json of a prepared folder, after checking the sizes of its shards. check_shards checks the content.

    Raises DataError if the folder is missing, is something else, or has lost a part.
    """
    folder, again = Path(folder), "remove it and prepare it again"
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; prepare it: python -m data.prepare --source=... --out={folder}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        sizes = shard_sizes(folder, meta)
        same = fingerprint(meta, tokenizer_bytes(folder, meta)) == meta["fingerprint"] and meta["format"] == 1
        for record in meta["splits"].values():
            same = same and record["tokens"] == sum(shard["tokens"] for shard in record["shards"])
    except MALFORMED as error:
        what = f"{folder} is not a prepared folder, or is damaged ({type(error).__name__}: {error})"
        raise DataError(f"{what}: {again}") from None
    if not same:
        raise DataError(f"{folder}: the tokenizer or meta.json has changed since it was written: {again}")
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            raise DataError(f"{path} is missing or not {size} bytes long: {again}")
    return meta


def shard_sizes(folder, meta):
    """Return {path: bytes} of the shards."""
    itemsize = np.dtype(meta["dtype"]).itemsize
    return {path: shard["tokens"] * itemsize for path, shard in shard_files(folder, meta)}


def shard_files(folder, meta):
    """Yield (path, its entry in meta) of each shard."""
    for record in meta["splits"].values():
        yield from ((Path(folder, shard["file"]), shard) for shard in record["shards"])


def shard_stamps(folder, meta):
    """Return {file: [size, time of the last change]} of the shards, for `check_shards`."""
    return {path.name: [path.stat().st_size, path.stat().st_mtime_ns] for path, _ in shard_files(folder, meta)}


def check_shards(folder, meta, stamps=None):
    """Raise DataError if a shard has changed. Computes the checksum of those that differ from `stamps`; None = of all."""
    now = shard_stamps(folder, meta)
    for path, shard in shard_files(folder, meta):
        if (stamps or {}).get(path.name) != now[path.name] and sha256(path) != shard["sha256"]:
            raise DataError(f"{path} has changed since it was written: prepare it again")


def tokenizer_bytes(folder, meta):
    """Return the content of the tokenizer's file in a prepared folder."""
    return Path(folder, Tokenizer.file_name_of(meta["tokenizer"])).read_bytes()


def load_tokenizer(folder, meta):
    """Return the Tokenizer of a prepared folder whose meta.json load_meta has returned."""
    return Tokenizer.from_state(meta["tokenizer"], tokenizer_bytes(folder, meta))
