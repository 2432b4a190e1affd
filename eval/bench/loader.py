"""Tokens per second that one CPU core prepares from a memory-mapped file, next to a nanoGPT-style sampler."""

import itertools
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import configurator
from data.loader import Batches, TokenStream
from eval.bench.timing import alternating, hardware

seq_len = 2048  # tokens of a window
windows = 64  # windows of a batch
tokens = 30_000_000  # tokens in the file
repeats = 9  # the median of these counts


def random_data(folder, vocab_size, n_tokens):
    """Write a shard of random tokens, with an eos every 700. Return its TokenStream and a stand-in for a tokenizer."""
    mask_id, eos_id, dtype = vocab_size - 1, vocab_size - 2, np.uint16 if vocab_size <= 2**16 else np.uint32
    ids = np.random.default_rng(0).integers(0, eos_id, n_tokens).astype(dtype)
    ids[::700] = eos_id
    ids.tofile(Path(folder) / "train-00000.bin")
    meta = {"dtype": dtype.__name__, "splits": {"train": {"shards": [{"file": "train-00000.bin"}]}}}
    tokenizer = SimpleNamespace(mask_id=mask_id, eos_id=eos_id, vocab_size=vocab_size, ordinary_ids=np.arange(eos_id))
    return TokenStream(folder, meta, "train"), tokenizer


def nanogpt_batch(stream, T, n_windows):
    """Sample a batch as nanoGPT's get_batch does, which opens the file anew each time."""
    data = np.memmap(stream.shards[0].filename, stream.shards[0].dtype, "r")
    at = torch.randint(len(data) - T, (n_windows,))
    x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in at])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in at])
    return {"tokens": x, "targets": y}


def main(args):
    cfg = configurator.load(__file__, args, command="python -m eval.bench loader")
    torch.set_num_threads(1)
    print(hardware())
    with tempfile.TemporaryDirectory() as folder:
        (stream, tokenizer), step = random_data(folder, 4096, cfg.tokens), itertools.count()
        functions = {"nanoGPT-style sampler": lambda: nanogpt_batch(stream, cfg.seq_len, cfg.windows)}
        for split in ("none", "random", "document"):
            batches = Batches(stream, tokenizer, 1, cfg.seq_len, cfg.windows, split)
            functions[f"CLM, window_split={split}"] = lambda b=batches: b.batch(next(step), True)
            functions[f"MLM, window_split={split}"] = lambda b=batches: b.batch(next(step), False)
        seconds = alternating(functions, cfg.repeats)
    for name, s in seconds.items():
        print(f"{name:<28}{cfg.windows * cfg.seq_len / s / 1e6:>8.1f}M tokens/s")
