"""Helpers for the tests of the preparation: write sources, read prepared folders."""

import gzip
import json
from pathlib import Path

import numpy as np

from data.shards import load_data, load_meta, load_tokenizer


def many_documents(count):
    return [f"Document {i} is about the number {i * i}.\n\nIt ends." for i in range(count)]


def write_jsonl(path, documents, field="text"):
    lines = "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(documents)).encode()
    path.write_bytes(gzip.compress(lines, 1) if path.suffix == ".gz" else lines)
    return path


def tokens(folder, split):
    """Return all tokens of a split, from its shards in order."""
    meta = load_meta(folder)
    shards = [np.fromfile(Path(folder, s["file"]), meta["dtype"]) for s in meta["splits"][split]["shards"]]
    return np.concatenate(shards).tolist()


def texts(folder, split):
    """Decode the documents of a split from its tokens."""
    return load_tokenizer(load_data(str(folder))).decode(tokens(folder, split)).split("[EOS]")[:-1]


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}
