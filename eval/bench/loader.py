"""Tokens per second that one CPU core prepares from a memory-mapped file, next to a nanoGPT-style sampler."""

import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from data.loader import Batches, TokenStream
from data.objective import CLM, Objective
from eval.bench.timing import alternating

seq_len = 2048  # tokens of a window
windows = 64  # windows of a batch
tokens = 30_000_000  # tokens in the file
repeats = 9  # the median of these counts


def random_data(folder, vocab_size, n_tokens):
    """Write a shard of random tokens, with an eos every 700. Return its TokenStream and a stand-in for a tokenizer."""
    eos_id, dtype = vocab_size - 2, "uint16" if vocab_size <= 2**16 else "uint32"
    ids = np.random.default_rng(0).integers(0, eos_id, n_tokens).astype(dtype)
    ids[::700] = eos_id
    ids.tofile(Path(folder) / "train-00000.bin")
    splits = {"train": {"shards": [{"file": "train-00000.bin", "tokens": n_tokens}]}}
    meta = {"dtype": dtype, "splits": splits, "tokenizer": {"vocab_size": vocab_size}}
    special = dict(mask_id=vocab_size - 1, eos_id=eos_id, bos_id=eos_id, pad_id=eos_id)
    tokenizer = SimpleNamespace(**special, vocab_size=vocab_size, ordinary_ids=np.arange(eos_id))
    return TokenStream(folder, meta, "train"), tokenizer


def nanogpt_batch(stream, T, n_windows):
    """Sample a batch as nanoGPT's get_batch does, which opens the file anew each time."""
    data = np.memmap(stream.shard(0).filename, stream.shard(0).dtype, "r")
    at = torch.randint(len(data) - T, (n_windows,))
    x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in at])
    return {"tokens": x, "targets": y}


def main(cfg):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (stream, tokenizer), step = random_data(folder, 4096, cfg.tokens), itertools.count()
        functions = {"nanoGPT-style sampler": lambda: nanogpt_batch(stream, cfg.seq_len, cfg.windows)}
        for split, kind in itertools.product(("none", "random", "document"), (CLM, Objective(mask_ratio=0.4))):
            batches = Batches(stream, tokenizer, 1, cfg.seq_len, cfg.windows, split)
            title = f"{'CLM' if kind.causal else 'MLM'}, window_split={split}"
            functions[title] = lambda batches=batches, kind=kind: batches.batch(next(step), kind)
        seconds = alternating(functions, cfg.repeats)
    for name, s in seconds.items():
        print(f"{name:<28}{cfg.windows * cfg.seq_len / s / 1e6:>8.1f}M tokens/s")
