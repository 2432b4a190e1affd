"""Helpers for the tests of the preparation: write sources, read prepared folders."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from data.prepare import prepare
from data.shards import load_data, load_meta, load_tokenizer
from data.sources import find_files, read_file
from helpers import on_changes, server

OPTIONS = dict(shard_bytes=3000, val_fraction=0.1, workers=1)


def many_documents(count):
    return [f"Document {i} is about the number {i * i}.\n\nIt ends." for i in range(count)]


def write_texts(path, texts):
    """Write a file of records with these texts: .parquet, or JSON lines, perhaps .gz or .zst."""
    records = [{"id": i, "text": text} for i, text in enumerate(texts)]
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    if path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist(records)
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=max(3, len(records) // 2))
    elif path.suffix == ".zst":
        path.write_bytes(pytest.importorskip("pyarrow").compress(lines, "zstd", asbytes=True))
    else:
        path.write_bytes(gzip.compress(lines, 1) if path.suffix == ".gz" else lines)
    return path


def read_documents(source, field):
    """Yield the documents of a source as strings."""
    for file in find_files(source, field)[0]:
        yield from filter(None, read_file(file, field))


def tokens(folder, split):
    """Return all tokens of a split, from its shards in order."""
    meta = load_meta(folder)
    shards = [np.fromfile(Path(folder, s["file"]), meta["dtype"]) for s in meta["splits"][split]["shards"]]
    return np.concatenate(shards).tolist()


def texts(folder, split):
    """Decode the documents of a split from its tokens."""
    return load_tokenizer(load_data(str(folder))).decode(tokens(folder, split)).split("[EOS]")[:-1]


def prepare_until(source, out, options, end, send):
    """Prepare small pieces, and end before change `end` of the disk."""
    changes = []
    on_changes(out, lambda number, path: os._exit(7) if number == end else changes.append(path))
    prepare(source, out, **OPTIONS | options)
    send.send(len(changes))


def in_child(source, out, options=None, end=None):
    """Return the exit code of prepare_until(), and the number of changes if it was not killed."""
    receive, send = server.Pipe(False)
    process = server.Process(target=prepare_until, args=(source, out, options or {}, end, send))
    process.start()
    process.join(60)
    return process.exitcode, None if process.exitcode else receive.recv()
