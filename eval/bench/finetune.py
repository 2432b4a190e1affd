"""Tokens per second of fine-tuning for sequence classification, on batches without padding and on padded ones.

The padded loop is the same model on rows as long as the batch's longest text, with the faster of PyTorch's fused
attention and plain products. It does not even mask the padding, so a correct padded loop is slower.
"""

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

import configurator
from eval.bench.timing import alternating, hardware
from eval.tasks.model import TaskModel, pack_texts
from model import ModelConfig, Transformer
from runtime import resolve_auto

d_model = 256  # width; a head has 64 dimensions
n_layer = 4  # number of layers
texts = 32  # texts of a batch
batches = 4  # batches of one repeat
repeats = 7  # the median of these counts

VOCAB_SIZE = 4096


def pad_texts(texts):
    """Token lists -> tokens (B, T), with zeros after each text, and whether a token is one of the text's (B, T)."""
    lengths = torch.tensor([len(ids) for ids in texts])
    keep = torch.arange(lengths.max()) < lengths[:, None]
    return torch.zeros(keep.shape, dtype=torch.long).masked_scatter_(keep, torch.tensor(sum(texts, []))), keep


def train(task, optimizer, data, backend):
    """One update for each batch of `data`, without padding if `backend` is "", else padded."""
    for batch in data:
        if backend:
            task.encoder.attention_backend = backend
            tokens, keep = pad_texts(batch)
            hidden = task.encoder(tokens, False).float() * keep[..., None]
            logits = task.head(hidden.sum(1) / keep.sum(1, keepdim=True))
        else:
            task.encoder.attention_backend = "auto"
            logits = task(**pack_texts(batch, 64))
        F.cross_entropy(logits, torch.zeros(len(batch), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()


def main(args):
    cfg = configurator.load(__file__, args, command="python -m eval.bench finetune")
    print(hardware())
    rng, heads = np.random.default_rng(0), cfg.d_model // 64
    config = ModelConfig(VOCAB_SIZE, cfg.n_layer, heads, heads, cfg.d_model, 3 * cfg.d_model, seq_len=512)
    torch.manual_seed(0)
    task = TaskModel(Transformer(config), "sc", 2, causal=False, pooling="mean", dropout=0.0)
    dtype = resolve_auto(dict(device="cpu", dtype="auto"))["dtype"]
    task.encoder.compute_dtype = getattr(torch, dtype)
    optimizer = torch.optim.AdamW([p for n, p in task.named_parameters() if n != "encoder.head.weight"], fused=True)
    print(f"{cfg.n_layer} layers, width {cfg.d_model}, batches of {cfg.texts} texts, {dtype}")
    lengths_like = {
        "SST-2, 2 to 80 tokens": lambda: np.exp(rng.normal(2.2, 0.75, cfg.texts)).clip(2, 80),
        "SQuAD, 60 to 480 tokens": lambda: rng.normal(175, 60, cfg.texts).clip(60, 480),
    }
    variants = {"without padding": "", "padded, fused attention": "sdpa", "padded, plain products": "reference"}
    for name, lengths in lengths_like.items():
        data = [[rng.integers(1, VOCAB_SIZE, int(n)).tolist() for n in lengths()] for _ in range(cfg.batches)]
        functions = {title: partial(train, task, optimizer, data, backend) for title, backend in variants.items()}
        seconds = alternating(functions, cfg.repeats)
        n_tokens = sum(len(ids) for batch in data for ids in batch)
        ratio = min(s for title, s in seconds.items() if "padded" in title) / seconds["without padding"]
        mean = n_tokens / cfg.batches / cfg.texts
        print(f"like {name}, mean {mean:.0f}: the faster padded loop takes {ratio:.2f}x the time")
        for title, s in seconds.items():
            print(f"  {title:<26}{n_tokens / s:>9,.0f} tokens of text/s")
