"""Prepared folders: write one whole or not at all, go on after a kill, read and verify it.

While OUT is written, the folder OUT.partial holds the new folder and progress.json: meta.json as it was after the last
shard that was written, and the document with which that shard ended. A process that goes on begins after that document.
The file OUT.partial/prepare.lock is locked all the time. It also marks the folder as ours: another OUT.partial is left
alone. An OUT that exists is never replaced.
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import MALFORMED, lock_folder, sync, write_whole
from data.tokenizer import Tokenizer
from errors import DataError

LOCK = "prepare.lock"
CYCLE = 1000  # a mixture of sources repeats after so many windows: its fractions have at most three decimals


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
    files: [name, size, time of change] of each input file.
    meta: meta.json of a folder without tokens.

    A part is a shard of each split, in memory until it has `shard_tokens`, and then the record in progress.json. If
    `partial` holds the progress of the same plan, then `meta` is as it was after the last part, which ended with
    document number `place[1]` of file `place[0]`. The progress of another plan, or of input files that have changed
    since, raises DataError.
    """

    def __init__(self, out, partial, plan, files, meta):
        self.out, self.plan, self.files, self.folder = out, plan, files, partial / out.name
        self.progress_file = partial / "progress.json"
        self.meta, self.place, self.full = meta, (0, 0), False
        self.part, self.part_tokens = {"train": [], "val": []}, 0  # arrays of tokens, one for each document
        check_out(out)
        if self.progress_file.exists() and self.folder.exists():  # without the folder: it was moved to its place
            self.go_on()
        else:
            self.clear()
            self.folder.mkdir()
        self.splits = self.meta["splits"]

    def clear(self):
        """Delete everything in OUT.partial but the lock."""
        self.progress_file.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def go_on(self):
        """Read progress.json, and delete what was written later. Raises DataError if it does not fit."""
        partial = self.progress_file.parent
        anew = f"choose another --out, or remove {partial} to start anew"
        try:
            content, _, digest = self.progress_file.read_bytes().partition(b"\n")
            if hashlib.sha256(content).hexdigest().encode() != digest:
                raise ValueError(f"{self.progress_file} has changed since it was written")
            progress = json.loads(content)
            plan, files, self.meta, self.place = (progress[key] for key in ("plan", "files", "meta", "place"))
            self.place = tuple(self.place)
            shards = check_sizes(self.folder, self.meta)
            if path := changed_shard(self.folder, self.meta):
                raise ValueError(f"{path} has changed since it was written")
        except MALFORMED as error:
            raise DataError(f"{partial} is damaged ({error}): {anew}") from None
        if plan != self.plan or files != self.files[: len(files)]:
            other = "an unfinished preparation with other settings, or of files that have changed since"
            raise DataError(f"{partial} holds {other}: give those of then, or {anew}")
        for path in self.folder.iterdir():
            if path not in shards:
                path.unlink()

    def write(self, batch, tokens, lengths):
        """Add a list of data.prepare.Documents: the tokens (n,) of all of them, and the number of tokens of each.

        Sets `full` and stops before the document with which train would have more than max_tokens.
        """
        for document, ids in zip(batch, np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
            if self.part_tokens >= self.plan["shard_tokens"]:
                self.save_part()
            record, limit = self.splits[document.split], self.plan["max_tokens"]
            if limit and document.split == "train" and record["tokens"] + len(ids) > limit:
                self.full = True
                return
            self.part[document.split].append(ids)
            self.part_tokens += len(ids)
            for name, count in ("documents", 1), ("tokens", len(ids)), ("bytes", document.size):
                record[name] += count
            self.place = document.file, document.number

    def save_part(self):
        """Write a shard of each split that has tokens in memory, then the record that lets another process go on."""
        for split, arrays in self.part.items():
            if arrays:
                shards, tokens = self.splits[split]["shards"], np.concatenate(arrays)
                name = f"{split}-{len(shards):05d}.bin"
                write_whole(self.folder / name, lambda file: file.write(tokens))
                shards.append({"file": name, "tokens": len(tokens), "sha256": hashlib.sha256(tokens).hexdigest()})
        self.part, self.part_tokens = {"train": [], "val": []}, 0
        progress = {"plan": self.plan, "files": self.files[: self.place[0] + 1], "place": self.place, "meta": self.meta}
        content = json.dumps(progress).encode()
        digest = hashlib.sha256(content).hexdigest().encode()  # a changed `place` would not show in the data
        write_whole(self.progress_file, lambda file: file.write(content + b"\n" + digest))

    def empty_split(self):
        """Return the name of a split without text, or None. Each document has one eos."""
        return next((name for name, record in self.splits.items() if record["tokens"] == record["documents"]), None)

    def cut_tail(self):
        """Make the tail of the text validation where the hash put all documents into one split, as with one book."""
        if self.empty_split() == "train" and not self.full and not self.splits["val"]["shards"]:
            for pair in self.splits, self.part:
                pair["train"], pair["val"] = pair["val"], pair["train"]
        train, val = self.splits["train"], self.splits["val"]
        if self.empty_split() == "val" and self.part["train"]:
            tokens = np.concatenate(self.part["train"])
            n = min(max(2, round(self.plan["val_fraction"] * train["tokens"])), len(tokens) // 2)
            self.part = {"train": [tokens[:-n], tokens[-1:]], "val": [tokens[-n:]]}  # the head gets an eos too
            val.update(documents=1, tokens=n, bytes=train["bytes"] * n // train["tokens"])
            train["bytes"] -= val["bytes"]
            train["tokens"] -= n - 1
            print(f"no document fell into one of the splits: the last {n:,} tokens of the text are for validation")

    def finish(self, tokenizer):
        """Complete the folder and move it to its place."""
        self.cut_tail()
        if split := self.empty_split():
            self.clear()  # going on would not help
            raise DataError(f"no text is left for the {split} split: give more text")
        if any(self.part.values()):
            self.save_part()  # a process that is killed from here on leaves only this function to do
        self.meta["fingerprint"] = fingerprint(self.meta, tokenizer.file_bytes())
        write_whole(self.folder / tokenizer.file_name, lambda file: file.write(tokenizer.file_bytes()))
        write_whole(self.folder / "meta.json", lambda file: file.write(json.dumps(self.meta, indent=1).encode()))
        check_out(self.out)  # again: the preparation may have taken days
        self.folder.rename(self.out)
        sync(self.out.parent)


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def fingerprint(meta, file_bytes):
    """Return one checksum of all that a training run reads: the tokenizer and the shards."""
    shards = [shard["sha256"] for split in ("train", "val") for shard in meta["splits"][split]["shards"]]
    parts = [meta["tokenizer"], hashlib.sha256(file_bytes).hexdigest(), shards]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def load_meta(folder):
    """Return meta.json of a prepared folder, after checking the sizes of its shards; `changed_shard` reads them.

    Raises DataError if the folder is missing, is something else, or has lost a part.
    """
    folder = Path(folder)
    if not folder.exists():
        raise DataError(f"{folder}: no such folder; prepare it: python -m data.prepare --source=... --out={folder}")
    if not (folder / "meta.json").exists():
        command = f"python -m data.prepare --source={folder} --out=data/prepared/{folder.resolve().stem}"
        raise DataError(f"{folder} is not a prepared folder (no meta.json). If it holds text, prepare it: {command}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        same = fingerprint(meta, tokenizer_bytes(folder, meta)) == meta["fingerprint"]
        same = same and meta["dtype"] == token_dtype(meta["tokenizer"]["vocab_size"]).name
        for record in meta["splits"].values():
            same = same and record["tokens"] == sum(shard["tokens"] for shard in record["shards"])
        if not same:
            raise ValueError("the tokenizer or meta.json has changed since it was written")
        check_sizes(folder, meta)
    except MALFORMED as error:
        what = f"{folder} is damaged, or was not prepared by this version ({type(error).__name__}: {error})"
        again = "python -m data.prepare --source=... --out=..."
        raise DataError(f"{what}: prepare the text again, into another folder: {again}") from None
    return meta


def token_dtype(vocab_size):
    """Return the dtype of token ids on disk."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def check_sizes(folder, meta):
    """Return {path: bytes} of the shards. Raises ValueError if one is missing or has another size."""
    itemsize = np.dtype(meta["dtype"]).itemsize
    sizes = {path: shard["tokens"] * itemsize for path, shard in shard_files(folder, meta)}
    for path, size in sizes.items():
        if not path.is_file() or path.stat().st_size != size:
            raise ValueError(f"{path} is missing or not {size} bytes long")
    return sizes


def shard_files(folder, meta):
    """Yield (path, its entry in meta) of each shard. Raises ValueError if a path leaves the folder."""
    for record in meta["splits"].values():
        for shard in record["shards"]:
            if Path(shard["file"]).name != shard["file"]:
                raise ValueError(f"{shard['file']!r} is not the name of a file in this folder")
            yield Path(folder, shard["file"]), shard


def changed_shard(folder, meta):
    """Return the path of the first shard that is not as it was written, or None. Computes the checksum of each."""
    for path, shard in shard_files(folder, meta):
        digest = hashlib.sha256()
        with open(path, "rb") as file:  # a failing disk would kill a process that has mapped the file into memory
            while block := file.read(1 << 22):
                digest.update(block)
        if digest.hexdigest() != shard["sha256"]:
            return path
    return None


def changed_shard_in_background(data):
    """Return the concurrent.futures.Future of the first changed shard of all sources, or None.

    The thread does not keep the process from ending.
    """
    sources, future = data.sources.items(), concurrent.futures.Future()
    size = sum(sum(check_sizes(folder, meta).values()) for folder, meta in sources)
    if size > 1e9:
        print(f"the checksums of {size / 1e9:.0f} GB of data are computed in the background")

    def run():
        try:
            future.set_result(next(filter(None, (changed_shard(folder, meta) for folder, meta in sources)), None))
        except OSError as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def tokenizer_bytes(folder, meta):
    """Return the content of the tokenizer's file in a prepared folder."""
    return Path(folder, Tokenizer.file_name_of(meta["tokenizer"])).read_bytes()


# ---------------------------------------------------------------------------------------------------------------------
# One prepared folder, or a mixture of several


class Data(NamedTuple):
    """What train.py's setting `data` names.

    sources: {folder: its meta.json}. draws: {folder: its windows of every CYCLE}.
    fingerprint: one checksum of everything in it that decides what is learned.
    """

    sources: dict
    draws: dict
    fingerprint: str


def draws_of(data):
    """Return {folder: its windows of every CYCLE} of a setting `data`: a folder, or several, as in "a:0.7,b:0.3"."""
    if "," not in data:
        return {data: CYCLE}
    parts = [part.strip().rpartition(":") for part in data.split(",")]
    try:
        draws = {folder: round(CYCLE * float(fraction), 6) for folder, _, fraction in parts}
    except ValueError:
        draws = {}
    if sum(draws.values()) != CYCLE or not all(n in range(1, CYCLE) for n in draws.values()):
        what = "fractions of at most three decimals, whose sum is 1, and different folders, as in a:0.7,b:0.3"
        raise DataError(f"data={data}: expected {what}")
    return {folder: int(n) for folder, n in draws.items()}


def load_data(data):
    """Return the Data of a setting `data`. Raises DataError if a folder cannot be used, or if the tokenizers differ."""
    draws = draws_of(data)
    sources = {folder: load_meta(folder) for folder in draws}
    first, *others = ((it["tokenizer"] | {"name": ""}, tokenizer_bytes(folder, it)) for folder, it in sources.items())
    if different := [folder for folder, other in zip([*sources][1:], others) if other != first]:
        raise DataError(f"data={data}: {different[0]} was not prepared with the tokenizer of the first folder")
    prints = [meta["fingerprint"] for meta in sources.values()]
    if len({*prints}) < len(prints):
        raise DataError(f"data={data}: two of the folders hold the same data: name each once, with its whole fraction")
    if len(prints) > 1:
        prints = [hashlib.sha256(json.dumps([*draws.values(), *prints]).encode()).hexdigest()]
    return Data(sources, draws, prints[0])


def load_tokenizer(data):
    """Return the Tokenizer of a Data."""
    folder, meta = next(iter(data.sources.items()))
    return Tokenizer.from_state(meta["tokenizer"], tokenizer_bytes(folder, meta))
