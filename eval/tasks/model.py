"""The model that is fine-tuned: an encoder with a head, batches of packed texts, and predictions.

model = TaskModel(encoder, "sc", n_outputs=2, causal=False, dropout=0.1, protocol=STUDY)
logits = predict(model, items)  # a list with one array for each item
"""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from data.loader import to_device
from errors import DataError, progress

BATCH_TOKENS = {"cpu": 2**11, "cuda": 2**14}  # tokens in a batch of predictions; on a CPU, this many fit its caches


def pack_texts(sequences, capacity):
    """Pack n lists of token ids side by side into rows. Returns the arguments of TaskModel.forward, as CPU tensors.

    capacity: tokens per row, more if a text is longer; 0 gives each text its own row. Packing is first-fit decreasing:
    the longest texts come first, and each goes to the first row with room.
    """
    lengths = [len(ids) for ids in sequences]
    if capacity:
        capacity = max(capacity, *lengths)
    place = [(0, 0)] * len(lengths)  # the row and the first column of each text
    used = []  # tokens in each row
    for i in np.argsort([-n for n in lengths], kind="stable"):
        row = next((row for row, n in enumerate(used) if n + lengths[i] <= capacity), len(used))
        if row == len(used):
            used.append(0)
        place[i] = row, used[row]
        used[row] += lengths[i]

    T = max(used)
    tokens = torch.zeros(len(used), T, dtype=torch.int64)
    doc_start = torch.tensor(used, dtype=torch.int32)[:, None].repeat(1, T)  # padding: after the last text
    doc_end = doc_start.clone()
    positions = []
    for ids, (row, begin) in zip(sequences, place):
        end = begin + len(ids)
        tokens[row, begin:end] = torch.tensor(ids)
        doc_start[row, begin:end] = begin
        doc_end[row, begin:end] = end
        positions.append(torch.arange(row * T + begin, row * T + end))
    return dict(
        tokens=tokens,
        doc_start=doc_start,
        doc_end=doc_end,
        positions=torch.cat(positions),
        lengths=torch.tensor(lengths),
    )


class TaskModel(nn.Module):
    """An encoder, and a head on each text (sc) or on each token (tc, qa). In retrieval (ir) there is no head.

    encoder: a Transformer or a HubEncoder. causal: the attention mask. dropout: before the head of tc and qa.
    protocol: how hidden states are pooled in sc and ir, by the mean unless a retriever's own Protocol says otherwise.
    """

    def __init__(self, encoder, family, n_outputs, causal, dropout, protocol):
        super().__init__()
        d = encoder.config.d_model
        self.encoder = encoder
        self.causal = causal
        self.pooling = protocol.pooling if family in ("sc", "ir") else ""  # "": an output for each token
        self.normalizes = family == "ir" and protocol.cosine
        self.head = nn.Sequential()
        if family == "sc":
            self.head.extend([nn.Linear(d, d), nn.GELU(), nn.Linear(d, n_outputs)])
        elif family != "ir":
            self.head.extend([nn.Dropout(dropout), nn.Linear(d, n_outputs)])
        for name, p in self.head.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(p)
            else:
                nn.init.normal_(p, std=0.02)

    @property
    def capacity(self):
        """The tokens per row; 0 = one text per row. Few on a CPU, which computes even what the attention mask hides."""
        if getattr(self.encoder, "one_text_per_row", False):
            return 0
        seq_len = self.encoder.config.seq_len
        return min(seq_len, 64) if self.encoder.device.type == "cpu" else seq_len

    def forward(self, tokens, doc_start, doc_end, positions, lengths):
        """Compute the outputs for n texts with N tokens in all, packed by `pack_texts`.

        tokens, doc_start, doc_end: (B, T). positions: (N,), each token's index in the flattened batch, text by text.
        lengths: (n,), tokens per text. Returns fp32: (n, n_outputs) for sc, (n, d_model) for ir, (N, n_outputs) for tc
        and qa.
        """
        hidden = self.encoder(tokens, self.causal, doc_start, doc_end)  # (B, T, d)
        hidden = hidden.flatten(0, 1)[positions].float()  # (N, d)
        last = lengths.cumsum(0) - 1  # (n,)
        if self.pooling == "mean":
            numbers = torch.arange(len(lengths), device=hidden.device)
            text_of = numbers.repeat_interleave(lengths, output_size=len(positions))  # (N,)
            total = hidden.new_zeros(len(lengths), hidden.shape[1]).index_add(0, text_of, hidden)  # (n, d)
            hidden = total / lengths[:, None]
        elif self.pooling:
            hidden = hidden[last if self.pooling == "lasttoken" else last - lengths + 1]
        if self.normalizes:
            hidden = F.normalize(hidden, dim=-1)
        return self.head(hidden)


@torch.no_grad()
def predict(model, items):
    """Run a TaskModel on items, each with token `ids`. Leaves the model in training mode.

    Returns an fp32 array for each item: (n_outputs,) for sc, (d_model,) for ir, (tokens of the item, n_outputs) for tc
    and qa. Raises DataError if an output is not finite.
    """
    device = model.encoder.device
    lengths = [len(item.ids) for item in items]
    batches = []  # lists of items with similar lengths
    room = 0
    for i in np.argsort([-n for n in lengths], kind="stable"):
        if lengths[i] > room:
            batches.append([])
            room = BATCH_TOKENS[device.type]
        batches[-1].append(i)
        room -= lengths[i]
    outputs = [None] * len(items)
    model.eval()
    for batch in progress(batches, "scoring", leave=False, disable=len(batches) <= 20):
        packed = pack_texts([items[i].ids for i in batch], model.capacity)
        parts = model(**to_device(packed, device)).cpu()
        if not parts.isfinite().all():
            raise DataError("the model's outputs are not finite: try a smaller --lr, or --dtype=float32")
        if not model.pooling:
            parts = parts.split(packed["lengths"].tolist())
        for i, part in zip(batch, parts):
            outputs[i] = part.numpy()
    model.train()
    return outputs
