"""Write a prepared folder whole or not at all, and continue after a kill. data/shards.py reads it.

While OUT is written, the folder OUT.partial holds

    prepare.lock            held by the processes that work there
    PLAN/00017.json         the record of a piece of text that is done
    PLAN/shards/            train-00017.bin and val-00017.bin of each piece, and in the end all of OUT

PLAN is a checksum of the input files and the settings, so the pieces of another preparation are never used. A piece is
done if its record exists and matches its shards; otherwise it is made again. So `join` may change shards in place, and
a kill does no harm. The OUT.partial of another plan is left alone, and an existing OUT is never replaced.
"""

import contextlib
import json
import shutil

import numpy as np

from data.files import MALFORMED, lock_folder, refuse_existing, sync, write_json, write_whole
from data.shards import SPLITS, digest, fingerprint, sha256_of, token_dtype
from errors import DataError

LOCK = "prepare.lock"
COUNTED = "documents", "empty", "tokens", "bytes"  # of each split; "empty": documents without text, left out


@contextlib.contextmanager
def unfinished_folder(out, plan, part=""):
    """Yield the folder for the pieces of a plan. Without `part`, it is for this process alone.

    Processes with a part share it. If two have the same part, its work is done twice, which does no harm. After an
    error, what is done stays. Raises DataError if another process is at work, or if OUT.partial has another plan.
    """
    partial = out.with_name(f"{out.name}.partial")
    for path in partial.glob("*"):
        if path.name not in (plan, LOCK):
            raise DataError(
                f"{path} is from another preparation: source, tokenizer, val_fraction, text_field or shard_bytes is "
                "different, or a file has changed. Give the same, choose another --out, or remove what you do not need"
            )
    with lock_folder(partial, LOCK, shared=bool(part)):
        folder = partial / plan
        try:
            refuse_existing(out)
            (folder / "shards").mkdir(parents=True, exist_ok=True)
            yield folder
        finally:
            if part or any(folder.glob("*.json")):
                print(f"{partial} keeps what is done: the same command, without --part, completes the folder")
            else:
                shutil.rmtree(folder, ignore_errors=True)
                shutil.rmtree(partial, ignore_errors=True)  # the lock last


# ---------------------------------------------------------------------------------------------------------------------
# The shards of a piece, and its record


def make_piece(folder, number, encoded):
    """Write the shards of a piece and its record, unless they are there and whole. Returns the record.

    encoded: yields (split, tokens of a document, its bytes of text). The record has a checksum of its own.
    """
    path = folder / f"{number:05d}.json"
    with contextlib.suppress(*MALFORMED):
        record, checksum = json.loads(path.read_bytes())
        is_whole = digest(record) == checksum
        for shard in record.values():
            is_whole &= sha256_of([folder / "shards" / shard["file"]]) == shard["sha256"]
        if is_whole:
            return record
    record = write_shards(folder, number, encoded)
    write_json(path, [record, digest(record)])
    return record


def write_shards(folder, number, encoded):
    """Write a shard of each split. encoded: see `make_piece`.

    Returns {split: {"file": its name, "sha256": ..., and a number for each of COUNTED}}.
    """
    record = {}
    files = {}
    with contextlib.ExitStack() as stack:
        for split in SPLITS:
            path = folder / "shards" / f"{split}-{number:05d}.bin"
            path.unlink(missing_ok=True)  # it could be a link
            files[split] = stack.enter_context(open(path, "wb"))
            record[split] = {"file": path.name, **dict.fromkeys(COUNTED, 0)}
        for split, tokens, size in encoded:
            files[split].write(tokens)
            record[split]["documents" if size else "empty"] += 1
            record[split]["tokens"] += len(tokens)
            record[split]["bytes"] += size
    for split, file in files.items():
        sync(file.name)
        record[split]["sha256"] = sha256_of([file.name])
    sync(folder / "shards")
    return record


# ---------------------------------------------------------------------------------------------------------------------
# The join


def join(out, folder, records, tokenizer, cfg, is_full):
    """Turn the shards of all pieces into the folder `out`, and return its meta.json.

    records: of each piece, in order. is_full: whether max_tokens cut the text off.
    """
    shards = folder / "shards"
    dtype = token_dtype(tokenizer.vocab_size)
    train, val = (any(record[name]["tokens"] for record in records) for name in SPLITS)
    if train != val and (train or not is_full):
        records = [cut_tail(folder, records, dtype, cfg.val_fraction)]
    splits = {}
    needed = set()
    for name in SPLITS:
        parts = [record[name] for record in records if record[name]["tokens"]]
        if not parts:
            shutil.rmtree(folder)  # another start would not help
            raise DataError(f"no text is left for the {name} split: give more text, or a larger max_tokens")
        splits[name] = {key: sum(record[name].get(key, 0) for record in records) for key in COUNTED}
        splits[name]["shards"] = parts
        files = [shards / part["file"] for part in parts]
        splits[name]["sha256"] = sha256_of(files)
        needed.update(files)
    for path in {*shards.iterdir()} - needed:  # of a killed process, or of a piece after max_tokens
        path.unlink()

    meta = {"tokenizer": tokenizer.state(), "dtype": dtype.name, "splits": splits, "source": cfg.source}
    meta["fingerprint"] = fingerprint(meta, tokenizer.content)
    write_whole(shards / tokenizer.file_name, lambda file: file.write(tokenizer.content))
    write_json(shards / "meta.json", meta)
    refuse_existing(out)  # again: the preparation may have taken days
    shards.rename(out)
    sync(out.parent)
    shutil.rmtree(folder)
    return meta


def cut_tail(folder, records, dtype, val_fraction):
    """Use the tail of the text for validation where the hash put all documents into one split, as with one book.

    Returns the record of the only piece that is left. The whole text is in memory.
    """
    streams = []
    size = documents = empty = 0
    for record in records:
        for part in record.values():
            streams.append(np.fromfile(folder / "shards" / part["file"], dtype))
            size += part["bytes"]
            documents += part["documents"]
            empty += part["empty"]
    tokens = np.concatenate(streams)
    n = min(max(2, round(val_fraction * len(tokens))), len(tokens) // 2)
    print(f"no document fell into one of the splits: the last {n:,} tokens of the text are for validation")
    val_size = size * n // len(tokens)
    train = "train", np.append(tokens[:-n], tokens[-1:]), size - val_size  # with an eos at its end, too
    val = "val", tokens[-n:], val_size
    record = write_shards(folder, 0, [train, val])
    record["train"] |= {"documents": documents, "empty": empty}
    return record
