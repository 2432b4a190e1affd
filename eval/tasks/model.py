"""The model of a task: an encoder and a head, batches of texts without padding, and predictions."""

import numpy as np
import torch
import torch.nn as nn
from tqdm import tqdm

from data.loader import to_device

# ----------------------------------------------------------------------------
# Batches: texts of different lengths side by side, without padding


def pack(lengths, capacity):
    """First fit, longest first: texts of these lengths in rows of `capacity` -> the row and the start of each.

    Rows are as few as this simple rule makes them; a full row has no padding.
    """
    row, start, used = np.zeros(len(lengths), int), np.zeros(len(lengths), int), []
    for i in np.argsort(-np.asarray(lengths), kind="stable"):
        fits = (r for r, n in enumerate(used) if n + lengths[i] <= capacity)
        row[i] = next(fits, len(used))
        if row[i] == len(used):
            used.append(0)
        start[i] = used[row[i]]
        used[row[i]] += lengths[i]
    return row, start


def packed(sequences, capacity):
    """Token lists -> the arguments of TaskModel.forward, as a dict of tensors.

    capacity: the length of a row, if no sequence is longer. The kernels on a GPU skip what lies
    outside a document, so the longest row is best. On a CPU the scores of a row are all computed
    and then masked: short rows of a few texts each waste least.
    """
    lengths = np.array([len(ids) for ids in sequences])
    row, start = pack(lengths, max(capacity, lengths.max()))
    B, T = row.max() + 1, (start + lengths).max()
    tokens, doc_start, doc_end = np.zeros((B, T), np.int64), np.zeros((B, T), np.int32), np.zeros((B, T), np.int32)
    for ids, r, a, n in zip(sequences, row, start, lengths):
        tokens[r, a : a + n], doc_start[r, a : a + n], doc_end[r, a : a + n] = ids, a, a + n
    at = np.concatenate([np.arange(n) + r * T + a for r, a, n in zip(row, start, lengths)])
    arrays = dict(tokens=tokens, doc_start=doc_start, doc_end=doc_end, at=at, lengths=lengths)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


# ----------------------------------------------------------------------------
# The model: an encoder and a head


class TaskModel(nn.Module):
    """The encoder and a head on each text (sc) or on each token (tc, qa); for ir the text's pooled state itself."""

    def __init__(self, encoder, family, n_outputs, causal, pooling, dropout):
        super().__init__()
        d = encoder.config.d_model
        self.encoder, self.causal, self.pooling = encoder, causal, pooling if family in ("sc", "ir") else ""
        if family == "sc":
            layers = [nn.Linear(d, d), nn.GELU(), nn.Linear(d, n_outputs)]
        elif family == "ir":
            layers = []
        else:
            layers = [nn.Dropout(dropout), nn.Linear(d, n_outputs)]
        self.head = nn.Sequential(*layers)
        for name, p in self.head.named_parameters():
            nn.init.zeros_(p) if name.endswith("bias") else nn.init.normal_(p, std=0.02)

    def forward(self, tokens, doc_start, doc_end, at, lengths):
        """tokens, doc_start, doc_end: (B, T). at: (N,) where the tokens of all texts are in the flattened batch,
        text by text. lengths: (n,), sum N. Returns fp32 (n, n_outputs) or, without pooling, (N, n_outputs)."""
        hidden = self.encoder(tokens, self.causal, doc_start, doc_end).flatten(0, 1)[at].float()  # (N, d)
        if self.pooling == "mean":
            text = torch.repeat_interleave(torch.arange(len(lengths), device=at.device), lengths, output_size=len(at))
            summed = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add(0, text, hidden)
            hidden = summed / lengths[:, None]
        elif self.pooling == "last":
            hidden = hidden[lengths.cumsum(0) - 1]
        return self.head(hidden)


@torch.no_grad()
def outputs(model, items, capacity, batch_tokens=2**14):
    """What the model makes of each item, in order: a list of fp32 arrays, (n_outputs,) or (tokens, n_outputs)."""
    where, made = model.encoder.device, [None] * len(items)
    model.eval()
    batches, size = [[]], 0
    for i in sorted(range(len(items)), key=lambda i: -len(items[i].ids)):  # alike lengths together
        if size + len(items[i].ids) > batch_tokens and batches[-1]:
            batches.append([])
            size = 0
        batches[-1].append(i)
        size += len(items[i].ids)
    for batch in tqdm(batches if items else (), "scoring", leave=False, disable=len(batches) < 20):
        result = model(**to_device(packed([items[i].ids for i in batch], capacity), where)).cpu()
        for i, part in zip(batch, result if model.pooling else result.split([len(items[i].ids) for i in batch])):
            made[i] = part.numpy()
    model.train()
    return made
