"""The batch loader: a batch is a pure function of (data, seed, step).

Nothing here has state. With W windows per step, step s uses the draws s * W to s * W + W - 1. Draw g is window
`permute(g mod n)` of epoch g // n, where n is the number of windows in the data. In a mixture, a fixed pattern says
from which source draw g comes, and how many draws that source had before it. So each source has its own epochs.

Every random choice about a draw (where to cut, what to mask) is a hash of (seed, g). So the number of processes, the
micro-batch and restarts cannot change what the model sees. Nothing grows with the corpus either: there is no list of
50 million shuffled windows.
"""

import functools
import math
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from data.shards import CYCLE
from errors import Damaged, DataError
from runtime import map_items

u64 = np.uint64
OPEN_SHARDS = 64  # files that a stream keeps open at a time, at most
SHUFFLE, CUT, MASK = 0, 1, 2  # what a hash is for; the batches of all runs depend on these numbers

# ----------------------------------------------------------------------------
# Randomness without state


def mix(x):
    """Scatter 64-bit integers, one to one (the finalizer of splitmix64). uint64 array in and out."""
    x = (x ^ (x >> u64(30))) * u64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> u64(27))) * u64(0x94D049BB133111EB)
    return x ^ (x >> u64(31))


def hashed(*parts, h=np.zeros(1, np.uint64)):
    """Hash broadcastable non-negative integers to a uint64 array, at least 1-d. h: a hash to continue from."""
    for part in parts:
        h = mix(h + u64(0x9E3779B97F4A7C15) + np.asarray(part).astype(np.uint64))
    return h


def permute(i, n, key):
    """Map i by a keyed pseudo-random permutation of range(n). i: int64 (m,); key: uint64 (m,).

    A Feistel network permutes the smallest power of four that holds n. A result outside range(n) goes through it again
    until it falls inside (cycle walking). This takes fewer than four passes on average and keeps the map one-to-one.
    """
    bits = int(n - 1).bit_length()
    half = u64(max(1, (bits + 1) // 2))
    low = (u64(1) << half) - u64(1)
    x = i.astype(np.uint64)
    rounds = hashed(key, np.arange(6)[:, None])  # (6, m), at once: NumPy needs as long for few numbers as for hundreds
    outside = np.ones(len(i), bool)
    while outside.any():
        left = x[outside] >> half
        right = x[outside] & low
        for h in rounds[:, outside]:
            left, right = right, left ^ (hashed(right, h=h) & low)
        x[outside] = left << half | right
        outside = x >= n
    return x.astype(np.int64)


# ----------------------------------------------------------------------------
# Tokens on disk


class TokenStream:
    """The shards of one split as one long sequence of token ids, memory-mapped.

    meta: the data folder's meta.json, as `data.shards.load_meta` returns it.
    """

    def __init__(self, folder, meta, split):
        shards = meta["splits"][split]["shards"]
        self.vocab_size = meta["tokenizer"]["vocab_size"]
        self.folder = folder
        self.starts = np.cumsum([0, *(s["tokens"] for s in shards)])
        self.files = [Path(folder, s["file"]) for s in shards]
        self.shard = functools.lru_cache(OPEN_SHARDS)(lambda i: np.memmap(self.files[i], meta["dtype"], "r"))

    def __len__(self):
        return int(self.starts[-1])

    def windows(self, index, T):
        """Return windows of T tokens, int64 (m, T). index: their numbers, (m,). A window may cross shards."""
        out = np.empty((len(index), T), np.int64)
        for row, start in zip(out, index * T):
            filled = 0
            while filled < T:
                s = np.searchsorted(self.starts, start + filled, "right") - 1
                piece = self.shard(s)[start + filled - self.starts[s] :][: T - filled]
                if piece.max() >= self.vocab_size:
                    raise Damaged(
                        f"{self.files[s]}: id {piece.max()} is outside the vocabulary of {self.vocab_size} ids: "
                        "prepare the text again"
                    )
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
        return out


def mixing_pattern(draws):
    """Return the source of each draw in a cycle, and its index among that source's draws: two int64 (CYCLE,).

    draws: how many of each source; their sum is CYCLE. Each source's draws are spread evenly. For example, 2 and 3:

        source      1  0  1  0  1
        number      0  0  1  1  2
    """
    number = np.concatenate([np.arange(n) for n in draws])
    source = np.repeat(np.arange(len(draws)), draws)
    place = (number + 0.5) / np.asarray(draws)[source]  # in the cycle, from 0 to 1
    order = np.argsort(place, kind="stable")
    return source[order], number[order]


# ----------------------------------------------------------------------------
# Batches


class Windows(NamedTuple):
    """Windows of tokens, the input of `Objective.examples`.

    A document here is a part of a window whose tokens see each other: the whole window, unless `window_split` cuts it.
    """

    tokens: np.ndarray  # int64 (B, T)
    position: np.ndarray  # int64 (T,): 0 to T - 1
    start: np.ndarray  # int64 (B, T): the document of each token is at the positions [start, end)
    end: np.ndarray
    draw: np.ndarray  # int64 (B, 1): the number of the window in the run; with the seed, it decides all that is random
    seed: int  # of the run
    tokenizer: object  # a data.tokenizer.Tokenizer

    def random(self):
        """Return a random number for each token, uint64 (B, T). Each call returns the same numbers."""
        return hashed(hashed(self.seed, self.draw, MASK), self.position)


class Batches:
    """Batches of `windows_per_step` windows of `seq_len` tokens from one TokenStream or several.

    window_split: "none", "random" (cut each window in two at r ~ U[12, seq_len - 11), as the paper does) or "document"
        (cut at every eos).
    draws: of every CYCLE windows, how many are from each stream.
    """

    def __init__(self, streams, tokenizer, seed, seq_len, windows_per_step, window_split="none", draws=(CYCLE,)):
        self.streams = streams
        self.tokenizer = tokenizer
        self.seed = seed
        self.T = seq_len
        self.windows_per_step = windows_per_step
        self.window_split = window_split
        self.n_windows = [len(stream) // seq_len for stream in streams]  # in an epoch, without the last, incomplete one
        self.draws = np.asarray(draws)
        self.source, self.number = mixing_pattern(draws)

    def epochs(self, steps):
        """Return {folder: epochs}, how many epochs of each source these steps read, to within about a window."""
        epochs = steps * self.windows_per_step * self.draws / CYCLE / self.n_windows
        return {stream.folder: n for stream, n in zip(self.streams, epochs.tolist())}

    def batch(self, step, objective, windows=None):
        """Return windows of a step as a dict of tensors.

        objective: what they train, see data/objective.py. windows: their numbers within the step; None = all.

        tokens: int64 (B, T). positions: int64 (N,), where in the flattened batch a token is predicted. targets: int64
        (N,), which token, or -1 for none. If windows are split, or the objective bounds what a position sees, also
        doc_start and doc_end: int32 (B, T). If the objective has weights, also weights: float32 (N,), 0 where nothing
        is predicted. N depends on B, T and the objective, but not on how many tokens are predicted: if they are fewer,
        the other targets are -1.
        """
        windows = np.arange(self.windows_per_step) if windows is None else np.asarray(windows)
        draw = step * self.windows_per_step + windows  # (B,)
        cycle, place = np.divmod(draw, CYCLE)
        source = self.source[place]  # (B,)
        number = cycle * self.draws[source] + self.number[place]  # (B,), counted in its source
        tokens = np.empty((len(draw), self.T), np.int64)  # (B, T)
        for k, (stream, n) in enumerate(zip(self.streams, self.n_windows)):
            rows = source == k
            epoch, i = np.divmod(number[rows], n)
            key = hashed(self.seed, epoch, SHUFFLE) ^ u64(k)  # each source has its own shuffle
            tokens[rows] = stream.windows(permute(i, n, key), self.T)
        start, end = self.bounds(tokens, draw)  # (B, T) each
        whole = Windows(tokens, np.arange(self.T), start, end, draw[:, None], self.seed, self.tokenizer)
        shown, targets, see_start, see_end, weights = objective.examples(whole)

        # Each window gets n positions, so that shapes stay the same: those with a target and, if they are fewer, the
        # first ones without. In the flattened batch, position t of window b is b * T + t.
        n = objective.n_predicted(self.T)
        predicts = targets >= 0  # (B, T)
        count = predicts.sum(axis=1, keepdims=True)  # (B, 1)
        if (most := count.max()) > n:
            raise DataError(f"{objective.name}: a window has {most} targets, but n_predicted says {n} at most")
        positions = np.flatnonzero(predicts | (np.cumsum(~predicts, axis=1) <= n - count))  # (B * n,)
        batch = {"tokens": shown, "positions": positions, "targets": targets.reshape(-1)[positions]}
        if see_start is not None or see_end is not None or self.window_split != "none":
            batch["doc_start"] = (start if see_start is None else see_start).astype(np.int32)
            batch["doc_end"] = (end if see_end is None else see_end).astype(np.int32)
        if weights is not None:
            weights = np.where(predicts, weights, 0).astype(np.float32)
            batch["weights"] = weights.reshape(-1)[positions]
            if (weights < 0).any():
                raise DataError(f"{objective.name}: a weight is below 0")
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def micro_batch(self, step, windows):
        """Return windows of a step as one dict of tensors; see `batch`. windows: those of a MicroBatch."""
        parts = []
        first = 0
        for objective, pairs in groupby(windows, itemgetter(0)):
            part = self.batch(step, objective, [window for _, window in pairs])
            part["positions"] += first
            first += part["tokens"].numel()
            parts.append(part)
        if len(parts) == 1:  # nothing to copy
            return part
        if any(part.keys() != parts[0].keys() for part in parts):
            raise DataError(f"{objective.name}: only some of its examples have weights, see_start or see_end")
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def check_repeatable(self, objective):
        """Raise DataError if an objective makes other examples of the same window when it is called again."""
        once, again = (self.batch(0, objective, [0]).values() for _ in range(2))
        if not all(map(torch.equal, once, again)):
            raise DataError(
                f"{objective.name}: its examples of a window differ from call to call. Take random numbers from "
                "w.random(), or hash w.seed and w.draw"
            )

    def bounds(self, tokens, draw):
        """Return the bounds [start, end) of each token's document in its window: two int64 (B, T)."""
        B, T = tokens.shape
        if self.window_split == "none":
            return np.broadcast_to(0, (B, T)), np.broadcast_to(T, (B, T))
        if self.window_split == "random":
            cut = 12 + hashed(self.seed, draw, CUT) % u64(T - 23)
            last = np.arange(1, T + 1) == cut[:, None]  # is it the last token of a document?
        else:
            last = tokens == self.tokenizer.eos_id
        last[:, -1] = True
        ends = np.flatnonzero(last) + 1  # of all documents, in the flattened batch
        lengths = np.diff(ends, prepend=0)
        row = np.arange(0, B * T, T)[:, None]
        return [np.repeat(x, lengths).reshape(B, T) - row for x in (ends - lengths, ends)]


def streams_of(data, split):
    """Return the TokenStreams of one split of all sources of a Data."""
    return [TokenStream(folder, meta, split) for folder, meta in data.sources.items()]


def make_batches(cfg, data, tokenizer, T):
    """Return the Batches of training, and those of validation as {folder: (its fraction of the mixture, Batches)}.

    Validation always has the same windows, and never splits them. cfg: the settings of train.py. data: see `load_data`.
    T: tokens of a window.
    """
    val = {}
    for stream in streams_of(data, "val"):
        fraction = data.draws[stream.folder] / CYCLE
        windows = min(math.ceil(cfg.eval_windows * fraction), len(stream) // T)
        val[stream.folder] = fraction, Batches([stream], tokenizer, 0, T, windows)
    windows = cfg.global_batch_tokens // T
    draws = [*data.draws.values()]
    train = Batches(streams_of(data, "train"), tokenizer, cfg.seed, T, windows, cfg.window_split, draws)
    return train, val


def prefetch(function, jobs, depth=2):
    """Yield function(*job) for each job. A background thread works `depth` jobs ahead."""
    with ThreadPoolExecutor(1) as thread:
        ahead = deque()
        for job in jobs:
            ahead.append(thread.submit(function, *job))
            if len(ahead) > depth:
                yield ahead.popleft().result()
        for future in ahead:
            yield future.result()


def to_device(x, device):
    """Return a tensor, or a dict of tensors, on a device. The copy to a GPU is asynchronous."""
    if device.type == "cpu":
        return x
    return map_items(lambda tensor: tensor.pin_memory().to(device, non_blocking=True), x)
