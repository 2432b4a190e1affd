"""Prepared folders: write one whole or not at all, go on after a kill, read and verify it.

While OUT is written, the folder OUT.partial holds

    prepare.lock            held by the processes that work there
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
import re
import shutil
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import MALFORMED, lock_folder, refuse_existing, refuse_malformed, sync, write_json, write_whole
from data.tokenizer import Tokenizer
from errors import DataError

SPLITS = "train", "val"
LOCK = "prepare.lock"
EMBEDDED_FOLDER = "data/prepared/embedded"  # of the corpus that comes with the project
CYCLE = 1000  # a mixture of sources repeats after so many windows: its fractions have at most three decimals


@contextlib.contextmanager
def unfinished_folder(out, plan, part=""):
    """Yield the folder for the pieces of a plan. Without `part`, it is for this process alone.

    Processes with a part share it. If two have the same part, they do its work twice: a piece counts if its shards fit
    its record. After an error, what is done stays. Raises DataError if another process is at work, or if OUT.partial is
    something else.
    """
    partial = out.with_name(f"{out.name}.partial")
    if others := [path.name for path in partial.glob("*") if path.name not in (plan, LOCK)]:
        raise DataError(
            f"{partial} holds {others[0]}, which no preparation of these files, as they are now, with these settings "
            "has made: give the files and settings of then, choose another --out, or remove what you do not need"
        )
    with lock_folder(partial, LOCK, shared=bool(part)):
        folder = partial / plan
        try:
            refuse_existing(out)
            (folder / "shards").mkdir(parents=True, exist_ok=True)
            yield folder
        finally:
            if part or any(folder.glob("*.json")):
                print(
                    f"{partial} keeps what is done: the same command goes on from there, and without --part it "
                    "completes the folder",
                    file=sys.stderr,
                )
            else:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(partial, ignore_errors=True)  # the lock last


# ---------------------------------------------------------------------------------------------------------------------
# The shards of a piece, and its record


def write_shards(folder, number, encoded):
    """Write a shard of each split. encoded: yields (split, tokens of a document, its bytes of text).

    Returns {split: {"file": its name, "documents": how many, "tokens": ..., "bytes": ..., "sha256": ...}}.
    """
    shards, paths = {}, [folder / "shards" / f"{split}-{number:05d}.bin" for split in SPLITS]
    for split, path in zip(SPLITS, paths):
        path.unlink(missing_ok=True)  # it could be a link
        shards[split] = {"file": path.name, "documents": 0, "tokens": 0, "bytes": 0}
    with open(paths[0], "wb") as train, open(paths[1], "wb") as val:
        for split, tokens, size in encoded:
            (train if split == "train" else val).write(tokens)
            shards[split]["documents"] += 1
            shards[split]["tokens"] += len(tokens)
            shards[split]["bytes"] += size
    for path, shard in zip(paths, shards.values()):
        sync(path)
        shard["sha256"] = sha256_of([path])
    sync(folder / "shards")
    return shards


def save_record(folder, number, record):
    """Write the record of a piece whose shards are on the disk, with a checksum of its own."""
    write_json(folder / f"{number:05d}.json", [record, digest(record)])


def load_record(folder, number):
    """Return the record of a piece, or None if it or its shards are missing or damaged."""
    with contextlib.suppress(*MALFORMED):
        record, checksum = json.loads((folder / f"{number:05d}.json").read_bytes())
        for shard in record.values():
            if sha256_of([folder / "shards" / shard["file"]]) != shard["sha256"]:
                return None
        if digest(record) == checksum:
            return record


def digest(value):
    """Return the checksum of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of(paths):
    """Return the checksum of files as one stream."""
    checksum = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:  # a failing disk would kill a process that has mapped the file into memory
            while block := file.read(1 << 22):
                checksum.update(block)
    return checksum.hexdigest()


# ---------------------------------------------------------------------------------------------------------------------
# The join


def join(out, folder, records, tokenizer, cfg, is_full):
    """Make the shards of all pieces the folder `out`, and return its meta.json.

    records: of each piece, in order. is_full: whether max_tokens cut the text off.
    """
    shards = folder / "shards"
    dtype = token_dtype(tokenizer.vocab_size)
    splits = splits_of(records)
    empty = [name for name in SPLITS if not splits[name]["shards"]]
    if empty == ["val"] or (empty == ["train"] and not is_full):
        splits = splits_of([cut_tail(folder, splits, dtype, cfg.val_fraction)])
    for name, split in splits.items():
        if not split["shards"]:
            shutil.rmtree(folder)  # going on would not help
            raise DataError(f"no text is left for the {name} split: give more text, or a larger max_tokens")
        split["sha256"] = sha256_of(shards / shard["file"] for shard in split["shards"])
    needed = {shard["file"] for split in splits.values() for shard in split["shards"]}
    for path in shards.iterdir():
        if path.name not in needed:  # of a killed process, or of a piece after max_tokens
            path.unlink()

    content = tokenizer.content
    meta = {"tokenizer": tokenizer.state(), "dtype": dtype.name, "splits": splits, "source": cfg.source}
    meta["fingerprint"] = fingerprint(meta, content)
    write_whole(shards / tokenizer.file_name, lambda file: file.write(content))
    write_json(shards / "meta.json", meta)
    refuse_existing(out)  # again: the preparation may have taken days
    shards.rename(out)
    sync(out.parent)
    shutil.rmtree(folder)
    return meta


def splits_of(records):
    """Return what meta.json says of the splits, but their checksums. records: of each piece, in order."""
    splits = {}
    for split in SPLITS:
        shards = [record[split] for record in records]
        splits[split] = {name: sum(shard[name] for shard in shards) for name in ("documents", "tokens", "bytes")}
        splits[split]["shards"] = [shard for shard in shards if shard["tokens"]]
    return splits


def cut_tail(folder, splits, dtype, val_fraction):
    """Make the tail of the text validation where the hash put all documents into one split, as with one book.

    Returns the record of the only piece that is left. The whole text is in memory.
    """
    whole = splits["train"] if splits["train"]["shards"] else splits["val"]
    tokens = np.concatenate([np.fromfile(folder / "shards" / shard["file"], dtype) for shard in whole["shards"]])
    n = min(max(2, round(val_fraction * len(tokens))), len(tokens) // 2)
    print(f"no document fell into one of the splits: the last {n:,} tokens of the text are for validation")
    size = whole["bytes"] * n // len(tokens)
    head = np.append(tokens[:-n], tokens[-1:])  # it gets an eos too
    record = write_shards(folder, 0, [("train", head, whole["bytes"] - size), ("val", tokens[-n:], size)])
    record["train"]["documents"] = whole["documents"]
    return record


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def fingerprint(meta, content):
    """Return one checksum of all that decides what is learned: the tokenizer and the streams of tokens."""
    streams = [meta["splits"][split]["sha256"] for split in SPLITS]
    return digest([meta["tokenizer"], hashlib.sha256(content).hexdigest(), streams])


def load_meta(folder):
    """Return meta.json of a prepared folder, after checking the sizes of its shards. Reads none of them.

    Raises DataError if the folder is missing, is something else, or has lost a part.
    """
    folder = Path(folder)
    if not folder.exists():
        raise DataError(f"{folder}: no such folder; prepare it: python -m data.prepare --source=... --out={folder}")
    if not (folder / "meta.json").is_file():
        raise DataError(
            f"{folder} is not a prepared folder (no meta.json). If it holds text, prepare it: "
            f"python -m data.prepare --source={folder} --out=data/prepared/{folder.resolve().stem}"
        )
    with refuse_malformed(
        f"{folder} is damaged, or was not prepared by this version: prepare the text again, into another folder "
        "(python -m data.prepare --source=... --out=...)"
    ):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = token_dtype(meta["tokenizer"]["vocab_size"])
        same = dtype.name == meta["dtype"] and fingerprint(meta, tokenizer_bytes(folder)) == meta["fingerprint"]
        if not same:
            raise ValueError("the tokenizer or meta.json has changed since it was written")
        for path, shard in shard_files(folder, meta):
            size = shard["tokens"] * dtype.itemsize
            if path.stat().st_size != size:
                raise ValueError(f"{path} is not {size} bytes long")
    return meta


def token_dtype(vocab_size):
    """Return the dtype of token ids on disk."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def shard_files(folder, meta):
    """Return (path, its entry in meta) of each shard."""
    shards = [shard for record in meta["splits"].values() for shard in record["shards"]]
    return [(Path(folder, shard["file"]), shard) for shard in shards]


def changed_shard_in_background(data):
    """Return the concurrent.futures.Future of the first shard of all sources that is not as it was written, or None.

    It computes the checksum of each shard. The thread does not keep the process from ending.
    """
    future = concurrent.futures.Future()
    shards = [shard for folder, meta in data.sources.items() for shard in shard_files(folder, meta)]

    def run():
        changed = (path for path, shard in shards if sha256_of([path]) != shard["sha256"])
        try:
            future.set_result(next(changed, None))
        except BaseException as error:  # of any kind: the run waits for this future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def tokenizer_bytes(folder):
    """Return the content of the tokenizer's file in a prepared folder, whatever its kind."""
    (path,) = filter(Path.is_file, Path(folder).glob("tokenizer.*"))
    return path.read_bytes()


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
    found = re.findall(r"\s*([^,]*):0?\.(\d{1,3})\s*(?:,|$)", data)
    draws = {folder: int(decimals.ljust(3, "0")) for folder, decimals in found}
    if sum(draws.values()) != CYCLE or 0 in draws.values() or len(draws) <= data.count(","):
        raise DataError(
            f"data={data}: expected fractions of at most three decimals, whose sum is 1, and different folders, as in "
            "a:0.7,b:0.3"
        )
    return draws


def load_data(data):
    """Return the Data of a setting `data`. Raises DataError if a folder cannot be used, or if the tokenizers differ."""
    draws = draws_of(data)
    sources = {folder: load_meta(folder) for folder in draws}
    first, *others = [(meta["tokenizer"] | {"name": ""}, tokenizer_bytes(folder)) for folder, meta in sources.items()]
    if any(other != first for other in others):
        raise DataError(f"data={data}: the folders were not all prepared with the same tokenizer")
    prints = [meta["fingerprint"] for meta in sources.values()]
    if len(prints) > 1:
        prints = [digest([*draws.values(), *prints])]
    return Data(sources, draws, prints[0])


def load_tokenizer(data):
    """Return the Tokenizer of a Data."""
    folder, meta = next(iter(data.sources.items()))
    return Tokenizer.from_state(meta["tokenizer"], tokenizer_bytes(folder))
