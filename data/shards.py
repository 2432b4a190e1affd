"""Prepared folders: write one whole or not at all, go on after a kill, read and verify it.

While OUT is written, the folder OUT.partial holds

    prepare*.lock           held by the processes that work there; they also mark the folder as ours
    PLAN/00017.json         the record of a piece of text that is done
    PLAN/shards/            train-00017.bin and val-00017.bin of each piece, and in the end all of OUT

PLAN is a checksum of the input files and the settings, so that what belongs to others is never taken. The shards of a
piece count when its record is there and fits. Otherwise the piece is made again. So `join` may change shards in place,
and a kill needs no care. Another OUT.partial is left alone. An OUT that exists is never replaced.
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

SPLITS = "train", "val"
LOCKS = "prepare*.lock"
CYCLE = 1000  # a mixture of sources repeats after so many windows: its fractions have at most three decimals


def check_out(out):
    """Raise DataError if `out` exists."""
    if os.path.lexists(out):
        raise DataError(f"{out} exists, and is not replaced: choose another --out")


@contextlib.contextmanager
def unfinished_folder(out, plan, part=""):
    """Yield the folder for the pieces of a plan. Without `part`, it is for this process alone.

    Processes with different parts share it. After an error, what is done stays. Raises DataError if another process
    is at work, or if OUT.partial is something else.
    """
    check_out(out)
    partial = out.with_name(f"{out.name}.partial")
    if partial.exists() and os.listdir(partial) and not any(partial.glob(LOCKS)):
        raise DataError(f"{partial} is in the way, and no preparation made it: choose another --out")
    whose = part.replace("/", "-of-") or "all"
    with lock_folder(partial, "prepare.lock", shared=bool(part)), lock_folder(partial, f"prepare-{whose}.lock"):
        if any(path.name != plan and not path.match(LOCKS) for path in partial.iterdir()):
            what = "other settings, or of input files that have changed since"
            anew = f"choose another --out, or remove {partial} to start anew"
            raise DataError(f"{partial} holds an unfinished preparation with {what}: give those of then, {anew}")
        folder = partial / plan
        try:
            check_out(out)  # again: the process before may have made it
            (folder / "shards").mkdir(parents=True, exist_ok=True)
            yield folder
        except BaseException:
            if part or any(folder.glob("*.json")):
                print(f"{partial} keeps what is done: the same command goes on from there", file=sys.stderr)
            else:
                remove(partial, folder)
            raise
        if not part:
            remove(partial, folder)


def remove(partial, folder):
    """Delete OUT.partial, its locks last, so that what a kill leaves of it is marked as ours."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(partial, ignore_errors=True)


# ---------------------------------------------------------------------------------------------------------------------
# The shards of a piece, and its record


def write_shards(folder, number, encoded):
    """Write a shard of each split. encoded: yields (split, tokens of a document, its bytes of text).

    Returns {split: {"file": its name, "documents": how many, "tokens": ..., "bytes": ..., "sha256": ...}}.
    """
    shards, files = {}, {}
    with contextlib.ExitStack() as stack:
        for split in SPLITS:
            name = f"{split}-{number:05d}.bin"
            path = folder / "shards" / name
            path.unlink(missing_ok=True)  # it could be a link
            files[split] = stack.enter_context(open(path, "wb"))
            shards[split] = {"file": name, "documents": 0, "tokens": 0, "bytes": 0}
        for split, tokens, size in encoded:
            files[split].write(tokens)
            shards[split]["documents"] += 1
            shards[split]["tokens"] += len(tokens)
            shards[split]["bytes"] += size
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
    sync(folder / "shards")
    for shard in shards.values():
        shard["sha256"] = sha256_of([folder / "shards" / shard["file"]])
    return shards


def save_record(folder, number, record):
    """Write the record of a piece whose shards are on the disk, with a checksum of its own."""
    content = json.dumps(record).encode()
    checksum = hashlib.sha256(content).hexdigest().encode()
    write_whole(folder / f"{number:05d}.json", lambda file: file.write(content + b"\n" + checksum))


def load_record(folder, number):
    """Return the record of a piece, or None if it or its shards are missing or damaged."""
    try:
        content, _, checksum = (folder / f"{number:05d}.json").read_bytes().partition(b"\n")
        if hashlib.sha256(content).hexdigest().encode() != checksum:
            return None
        record = json.loads(content)
        for shard in record.values():
            if sha256_of([folder / "shards" / shard["file"]]) != shard["sha256"]:
                return None
    except MALFORMED:
        return None
    return record


def sha256_of(paths):
    """Return the checksum of files as one stream."""
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:  # a failing disk would kill a process that has mapped the file into memory
            while block := file.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# The join


def join(out, folder, records, tokenizer, cfg, is_full):
    """Make the shards of all pieces the folder `out`, and return its meta.json.

    records: of each piece, in order. is_full: whether max_tokens cut the text off.
    """
    shards = folder / "shards"
    dtype = token_dtype(tokenizer.vocab_size)
    splits = splits_of(records)
    empty = [name for name in SPLITS if is_empty(splits[name])]
    if empty == ["val"] or (empty == ["train"] and not is_full):
        splits = splits_of([cut_tail(folder, splits, dtype, cfg.val_fraction)])
    names = set()
    for name, split in splits.items():
        if is_empty(split):
            shutil.rmtree(folder)  # going on would not help
            raise DataError(f"no text is left for the {name} split: give more text")
        files = [shard["file"] for shard in split["shards"]]
        names.update(files)
        split["sha256"] = sha256_of(shards / file for file in files)
    for path in shards.iterdir():
        if path.name not in names:  # of a killed process, or of a piece after max_tokens
            path.unlink()

    meta = {"tokenizer": tokenizer.state(), "dtype": dtype.name, "splits": splits, "source": cfg.source}
    meta["fingerprint"] = fingerprint(meta, tokenizer.file_bytes())
    write_whole(shards / tokenizer.file_name, lambda file: file.write(tokenizer.file_bytes()))
    write_whole(shards / "meta.json", lambda file: file.write(json.dumps(meta, indent=1).encode()))
    check_out(out)  # again: the preparation may have taken days
    shards.rename(out)
    sync(out.parent)
    return meta


def splits_of(records):
    """Return what meta.json says of the splits, but their checksums. records: of each piece, in order."""
    splits = {}
    for split in SPLITS:
        shards = [record[split] for record in records]
        splits[split] = {name: sum(shard[name] for shard in shards) for name in ("documents", "tokens", "bytes")}
        splits[split]["shards"] = [shard for shard in shards if shard["tokens"]]
    return splits


def is_empty(split):
    """Whether no document has a token besides its eos."""
    return split["tokens"] == split["documents"]


def cut_tail(folder, splits, dtype, val_fraction):
    """Make the tail of the text validation where the hash put all documents into one split, as with one book.

    Returns the record of the only piece that is left. The text is in memory: it has few documents.
    """
    whole = splits["train"] if is_empty(splits["val"]) else splits["val"]
    tokens = np.concatenate([np.fromfile(folder / "shards" / shard["file"], dtype) for shard in whole["shards"]])
    n = min(max(2, round(val_fraction * len(tokens))), len(tokens) // 2)
    print(f"no document fell into one of the splits: the last {n:,} tokens of the text are for validation")

    head = np.append(tokens[:-n], tokens[-1:])  # it gets an eos too
    val_bytes = whole["bytes"] * n // len(tokens)
    train = "train", head, whole["bytes"] - val_bytes
    val = "val", tokens[-n:], val_bytes
    record = write_shards(folder, 0, [train, val])
    record["train"]["documents"] = whole["documents"]
    return record


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def fingerprint(meta, file_bytes):
    """Return one checksum of all that decides what is learned: the tokenizer and the streams of tokens."""
    streams = [meta["splits"][split]["sha256"] for split in SPLITS]
    parts = [meta["tokenizer"], hashlib.sha256(file_bytes).hexdigest(), streams]
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
        for path, shard in shard_files(folder, meta):
            size = shard["tokens"] * np.dtype(meta["dtype"]).itemsize
            if not path.is_file() or path.stat().st_size != size:
                raise ValueError(f"{path} is missing or not {size} bytes long")
    except MALFORMED as error:
        what = f"{folder} is damaged, or was not prepared by this version ({type(error).__name__}: {error})"
        again = "python -m data.prepare --source=... --out=..."
        raise DataError(f"{what}: prepare the text again, into another folder: {again}") from None
    return meta


def token_dtype(vocab_size):
    """Return the dtype of token ids on disk."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_files(folder, meta):
    """Yield (path, its entry in meta) of each shard. Raises ValueError if a path leaves the folder."""
    for record in meta["splits"].values():
        for shard in record["shards"]:
            if Path(shard["file"]).name != shard["file"]:
                raise ValueError(f"{shard['file']!r} is not the name of a file in this folder")
            yield Path(folder, shard["file"]), shard


def changed_shard(folder, meta):
    """Return the path of the first shard that is not as it was written, or None. Computes the checksum of each."""
    return next((path for path, shard in shard_files(folder, meta) if sha256_of([path]) != shard["sha256"]), None)


def changed_shard_in_background(data):
    """Return the concurrent.futures.Future of the first changed shard of all sources, or None.

    The thread does not keep the process from ending.
    """
    future = concurrent.futures.Future()
    tokens = sum(record["tokens"] for meta in data.sources.values() for record in meta["splits"].values())
    if tokens > 5e8:
        print(f"the checksums of {tokens / 1e9:.1f} billion tokens of data are computed in the background")

    def run():
        changed = (changed_shard(folder, meta) for folder, meta in data.sources.items())
        try:
            future.set_result(next(filter(None, changed), None))
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
    tokenizers = {}
    for folder, meta in sources.items():
        tokenizers[folder] = meta["tokenizer"] | {"name": ""}, tokenizer_bytes(folder, meta)
    first, *others = sources
    for folder in others:
        if tokenizers[folder] != tokenizers[first]:
            raise DataError(f"data={data}: {folder} was not prepared with the tokenizer of the first folder")
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
