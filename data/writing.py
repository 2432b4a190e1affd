"""Write a prepared folder whole or not at all, and go on after a kill. data/shards.py reads it.

While OUT is written, the folder OUT.partial holds

    prepare.lock            held by the processes that work there
    PLAN/00017.json         the record of a piece of text that is done
    PLAN/shards/            train-00017.bin and val-00017.bin of each piece, and in the end all of OUT

PLAN is a checksum of the input files and the settings, so that what belongs to others is never taken. The shards of a
piece count when its record is there and fits. Otherwise the piece is made again. So `join` may change shards in place,
and a kill needs no care. Another OUT.partial is left alone. An OUT that exists is never replaced.
"""

import contextlib
import json
import shutil
import sys

import numpy as np

from data.files import MALFORMED, lock_folder, refuse_existing, sync, write_json, write_whole
from data.shards import SPLITS, digest, fingerprint, sha256_of, token_dtype
from errors import DataError

LOCK = "prepare.lock"


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
