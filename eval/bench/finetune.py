"""Tokens per second of fine-tuning for sequence classification, on batches without padding and on padded ones.

The padded loop is the same model on rows as long as the batch's longest text, with the faster of PyTorch's fused
attention and plain products. It does not even mask the padding, so a correct padded loop is slower.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

from eval.bench.timing import alternating
from eval.tasks.model import TaskModel, pack_texts
from model import ModelConfig, Transformer
from runtime import resolve_auto

d_model = 256  # width; a head has 64 dimensions
n_layer = 4  # number of layers
texts = 32  # texts of a batch
batches = 4  # batches of one repeat
repeats = 7  # the median of these counts

VOCAB_SIZE = 4096
BACKENDS = {"without padding": "auto", "padded, fused attention": "sdpa", "padded, plain products": "reference"}


def train(task, optimizer, data, title):
    """Update the model once for each batch of `data`, in one of the ways of BACKENDS."""
    task.encoder.attention_backend = BACKENDS[title]
    for batch in data:
        if title == "without padding":
            logits = task(**pack_texts(batch, 64))
        else:
            tokens = pad_sequence([torch.tensor(ids) for ids in batch], batch_first=True)  # (B, T), 0 = padding
            keep = tokens[..., None] > 0
            hidden = task.encoder(tokens, False).float() * keep
            logits = task.head(hidden.sum(1) / keep.sum(1))
        F.cross_entropy(logits, torch.zeros(len(batch), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main(cfg):
    rng, heads = np.random.default_rng(0), cfg.d_model // 64
    config = ModelConfig(VOCAB_SIZE, cfg.n_layer, heads, heads, cfg.d_model, 3 * cfg.d_model, seq_len=512)
    torch.manual_seed(0)
    task = TaskModel(Transformer(config), "sc", 2, causal=False, pooling="mean", dropout=0.0)
    dtype = resolve_auto(dict(device="cpu", dtype="auto"))["dtype"]
    task.encoder.compute_dtype = getattr(torch, dtype)
    optimizer = torch.optim.AdamW([p for n, p in task.named_parameters() if n != "encoder.head.weight"], fused=True)
    print(f"{cfg.n_layer} layers, width {cfg.d_model}, batches of {cfg.texts} texts, {dtype}")
    size = (cfg.batches, cfg.texts)
    lengths_like = {
        "SST-2, 2 to 80 tokens": np.exp(rng.normal(2.2, 0.75, size)).clip(2, 80),
        "SQuAD, 60 to 480 tokens": rng.normal(175, 60, size).clip(60, 480),
    }
    for name, lengths in lengths_like.items():
        data = [[rng.integers(1, VOCAB_SIZE, int(n)).tolist() for n in row] for row in lengths]
        seconds = alternating({title: partial(train, task, optimizer, data, title) for title in BACKENDS}, cfg.repeats)
        n_tokens = sum(len(ids) for batch in data for ids in batch)
        unpadded, *padded = seconds.values()
        print(
            f"like {name}, mean {n_tokens / lengths.size:.0f}: "
            f"the faster padded loop takes {min(padded) / unpadded:.2f}x the time"
        )
        for title, s in seconds.items():
            print(f"  {title:<26}{n_tokens / s:>9,.0f} tokens of text/s")
