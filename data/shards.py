"""Prepared folders: read and verify them. data/writing.py writes them."""

import concurrent.futures
import hashlib
import json
import re
import threading
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data.files import refuse_malformed
from data.tokenizer import Tokenizer
from errors import DataError

SPLITS = "train", "val"
EMBEDDED_FOLDER = "data/prepared/embedded"  # of the corpus that comes with the project
CYCLE = 1000  # a mixture of sources repeats after so many windows: its fractions have at most three decimals


def digest(value):
    """Return the SHA-256 of plain values, in hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of(paths):
    """Return the SHA-256 of files as one stream, in hex."""
    checksum = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:  # a failing disk would kill a process that has mapped the file into memory
            while block := file.read(1 << 22):
                checksum.update(block)
    return checksum.hexdigest()


def fingerprint(meta, content):
    """Return one checksum of all that decides what is learned: the tokenizer and the streams of tokens."""
    return digest(
        [meta["tokenizer"], hashlib.sha256(content).hexdigest(), [meta["splits"][s]["sha256"] for s in SPLITS]]
    )


def load_meta(folder):
    """Return meta.json of a prepared folder, after checking the sizes of its shards. Does not read the shards.

    Raises DataError if the folder is missing, is something else, or has lost a part.
    """
    folder = Path(folder)
    if not (folder / "meta.json").is_file():
        what = " is not a prepared folder (no meta.json)" if folder.exists() else ": no such folder"
        raise DataError(f"{folder}{what}; prepare it: python -m data.prepare --source=TEXTS --out=FOLDER")
    with refuse_malformed(
        f"{folder} is damaged, or was not prepared by this version: prepare the text again, into another folder "
        "(python -m data.prepare --source=... --out=...)"
    ):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = token_dtype(meta["tokenizer"]["vocab_size"])
        if dtype.name != meta["dtype"] or fingerprint(meta, tokenizer_bytes(folder)) != meta["fingerprint"]:
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
    """Yield (path, its entry in meta) of each shard."""
    for split in meta["splits"].values():
        for shard in split["shards"]:
            yield Path(folder, shard["file"]), shard


def changed_shard_in_background(data):
    """Return a concurrent.futures.Future: the path of the first shard of all sources with a wrong checksum, or None.

    A daemon thread computes the checksums.
    """
    future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(changed_shard(data))
        except BaseException as error:  # of any kind: the run waits for this future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def changed_shard(data):
    for folder, meta in data.sources.items():
        for path, shard in shard_files(folder, meta):
            if sha256_of([path]) != shard["sha256"]:
                return path


def tokenizer_bytes(folder):
    """Return the content of the tokenizer's file in a prepared folder, whatever its kind."""
    (path,) = filter(Path.is_file, Path(folder).glob("tokenizer.*"))
    return path.read_bytes()


# ---------------------------------------------------------------------------------------------------------------------
# One prepared folder, or a mixture of several


class Data(NamedTuple):
    """What train.py's setting `data` names.

    sources: {folder: its meta.json}. draws: {folder: how many of every CYCLE windows it gives}.
    fingerprint: one checksum of everything in it that decides what is learned.
    """

    sources: dict
    draws: dict
    fingerprint: str


def draws_of(data):
    """Return the `draws` (see `Data`) of a setting `data`: a folder, or several, as in "a:0.7,b:0.3"."""
    if "," not in data:
        return {data: CYCLE}
    draws = {}
    for folder, decimals in re.findall(r"\s*([^,]*):0?\.(\d{1,3})\s*(?:,|$)", data):
        draws[folder] = int(decimals.ljust(3, "0"))
    if sum(draws.values()) != CYCLE or 0 in draws.values() or len(draws) <= data.count(","):
        raise DataError(
            f"data={data}: expected fractions of at most three decimals, whose sum is 1, and different folders, as in "
            "a:0.7,b:0.3"
        )
    return draws


def load_data(data):
    """Return the Data of a setting `data`. Raises DataError if a folder cannot be used, or if the tokenizers differ."""
    draws = draws_of(data)
    sources = {}
    tokenizers = []
    fingerprints = []
    for folder in draws:
        meta = load_meta(folder)
        sources[folder] = meta
        tokenizers.append((meta["tokenizer"] | {"name": ""}, tokenizer_bytes(folder)))
        fingerprints.append(meta["fingerprint"])
    if tokenizers != tokenizers[:1] * len(draws):
        raise DataError(f"data={data}: the folders were not all prepared with the same tokenizer")
    if len(draws) == 1:
        return Data(sources, draws, *fingerprints)
    return Data(sources, draws, digest([*draws.values(), *fingerprints]))


def load_tokenizer(data):
    """Return the Tokenizer of a Data."""
    folder, meta = next(iter(data.sources.items()))
    return Tokenizer.from_state(meta["tokenizer"], tokenizer_bytes(folder))
