"""The batch loader: a batch is a pure function of (data, seed, step).

Nothing here has state. With W windows per step, step s uses the draws s * W to s * W + W - 1. Draw g is window
`permute(g mod n)` of epoch g // n, where n is the number of windows in the data. In a mixture, a fixed pattern says
from which source draw g is, and how many that source has had before; so each source has its own epochs.

Every random choice about a draw (where to cut, what to mask) is a hash of (seed, g). So the number of processes, the
micro-batch and restarts cannot change what the model sees. Nothing grows with the corpus either: there is no list of
50 million shuffled windows.
"""

import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch

from data.prepare import EMBEDDED_FOLDER
from data.shards import CYCLE, load_data
from errors import DataError

OPEN_SHARDS = 64  # files that a stream keeps open at a time, at most

# ----------------------------------------------------------------------------
# Randomness without state


def mix(x):
    """Scatter 64-bit integers, one to one (the finalizer of splitmix64). uint64 array in and out."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def hashed(*parts):
    """Hash broadcastable non-negative integers to a uint64 array, at least 1-d."""
    h = np.zeros(1, np.uint64)
    for part in parts:
        h = mix(h + np.uint64(0x9E3779B97F4A7C15) + np.asarray(part).astype(np.uint64))
    return h


def permute(i, n, key):
    """Map i by a keyed pseudo-random permutation of range(n). i: int64 (m,); key: uint64 (m,).

    A Feistel network permutes the smallest power of four that holds n. A result outside
    range(n) goes through it again until it falls inside (cycle walking). This takes fewer
    than four rounds on average and keeps the map one-to-one.
    """
    half = np.uint64(max(1, (int(n - 1).bit_length() + 1) // 2))
    low = (np.uint64(1) << half) - np.uint64(1)
    x, outside = i.astype(np.uint64), np.ones(len(i), bool)
    while outside.any():
        left, right = x[outside] >> half, x[outside] & low
        for round_ in range(6):
            left, right = right, left ^ (hashed(key[outside], round_, right) & low)
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
        shards, self.vocab_size = meta["splits"][split]["shards"], meta["tokenizer"]["vocab_size"]
        self.folder, self.starts = folder, np.cumsum([0, *(s["tokens"] for s in shards)])
        self.files = [Path(folder, s["file"]) for s in shards]
        self.shard = functools.lru_cache(OPEN_SHARDS)(lambda i: np.memmap(self.files[i], meta["dtype"], "r"))

    def __len__(self):
        return int(self.starts[-1])

    def windows(self, index, T):
        """Return the windows number `index` (m,), of T tokens each, as int64 (m, T). A window may cross shards."""
        out = np.empty((len(index), T), np.int64)
        for row, start in zip(out, index * T):
            s, filled = int(np.searchsorted(self.starts, start, "right")) - 1, 0
            while filled < T:
                first = start + filled - self.starts[s]
                piece = self.shard(s)[first : first + T - filled]
                if piece.max() >= self.vocab_size:
                    at = int(piece.argmax())
                    where = f"{self.shard(s).filename}, token {first + at}"
                    raise DataError(f"{where}: id {piece[at]} is outside the vocabulary of {self.vocab_size} ids")
                row[filled : filled + len(piece)] = piece
                s, filled = s + 1, filled + len(piece)
        return out

    def reads(self, index, T, file):
        """Return whether one of the windows number `index` holds tokens of a shard. file: its Path."""
        if file not in self.files:
            return False
        start, end = self.starts[self.files.index(file) :][:2]
        return ((index * T < end) & ((index + 1) * T > start)).any()


def mixing_pattern(draws):
    """Return of which source each draw of a cycle is, and the how many-th of that source's: two int64 (CYCLE,).

    draws: how many of each source, with the sum CYCLE. Each source's are spread evenly: of 2 and 3 they would be

        source      1  0  1  0  1
        number      0  0  1  1  2
    """
    number = np.concatenate([np.arange(n) for n in draws])
    source = np.repeat(np.arange(len(draws)), draws)
    order = np.argsort((number + 0.5) / np.asarray(draws)[source], kind="stable")
    return source[order], number[order]


# ----------------------------------------------------------------------------
# Batches


class Batches:
    """Batches of `windows_per_step` windows of `seq_len` tokens from one TokenStream or several.

    draws: of every CYCLE windows, how many are from each stream.
    tokenizer: a data.tokenizer.Tokenizer. Its special tokens are never masked.
    window_split: "none", "random" (cut each window in two at r ~ U[12, seq_len - 11), as the paper does) or "document"
        (cut at every eos).
    mask_ratio: the largest one of all batches.
    mask_proportions: the fractions of the predicted tokens that are shown as the mask token, as a random ordinary
        token, and unchanged.
    """

    def __init__(
        self,
        streams,
        tokenizer,
        seed,
        seq_len,
        windows_per_step,
        window_split="none",
        mask_ratio=0.4,
        mask_proportions=(1.0, 0.0, 0.0),
        draws=(CYCLE,),
    ):
        self.streams, self.seed, self.T, self.windows_per_step = streams, seed, seq_len, windows_per_step
        self.window_split, self.most_masked = window_split, round(mask_ratio * seq_len)
        self.show_mask, self.show_random = mask_proportions[0], mask_proportions[0] + mask_proportions[1]
        self.n_windows = [len(stream) // seq_len for stream in streams]  # in an epoch, without the last, incomplete one
        self.draws, (self.source, self.number) = np.asarray(draws), mixing_pattern(draws)
        self.mask_id, self.eos_id = tokenizer.mask_id, tokenizer.eos_id
        self.ordinary_ids = tokenizer.ordinary_ids
        self.ordinary = np.zeros(tokenizer.vocab_size, bool)
        self.ordinary[self.ordinary_ids] = True

    def epochs(self, steps):
        """Return how many epochs of each source a run of so many steps is: {folder: epochs}."""
        cycles, rest = divmod(steps * self.windows_per_step, CYCLE)
        drawn = cycles * self.draws + np.bincount(self.source[:rest], minlength=len(self.draws))
        return {stream.folder: n / of for stream, n, of in zip(self.streams, drawn.tolist(), self.n_windows)}

    def batch(self, step, objective, windows=None):
        """Return windows of a step as a dict of tensors.

        objective: the data.objective.Objective that they train. windows: their numbers within the step; None = all.

        tokens: int64 (B, T). positions: int64 (N,), where in the flattened batch a token is
        predicted. targets: int64 (N,), which token, or -1 for none. If windows are split also
        doc_start and doc_end: int32 (B, T). N depends on B, T and on whether tokens are masked, but
        not on how many: where they are fewer than the largest mask ratio says, targets are -1.
        """
        draw = step * self.windows_per_step + np.asarray(range(self.windows_per_step) if windows is None else windows)
        tokens = np.empty((len(draw), self.T), np.int64)  # (B, T)
        for stream, its, index in self.by_source(draw):
            tokens[its] = stream.windows(index, self.T)
        start, end = self.bounds(tokens, draw)
        batch = self.masked(tokens, draw, start, objective) if objective.mask_ratio else self.next_token(tokens, end)
        if start is not None:
            batch |= {"doc_start": start.astype(np.int32), "doc_end": end.astype(np.int32)}
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def by_source(self, draw):
        """Yield for each source: its stream, which of the draws (B,) are from it, the windows that these are."""
        cycle, place = np.divmod(draw, CYCLE)
        number = cycle * self.draws[self.source[place]] + self.number[place]  # (B,), counted in its source
        for k, (stream, n) in enumerate(zip(self.streams, self.n_windows)):
            its = self.source[place] == k
            epoch, i = np.divmod(number[its], n)
            key = hashed(self.seed, epoch, 0) ^ np.uint64(k)  # each source has a shuffle of its own
            yield stream, its, permute(i, n, key)

    def first_step_with(self, file, steps):
        """Return the first of `steps` steps that reads a shard, or `steps` if none does. file: its Path."""
        for step in range(steps):
            draw = step * self.windows_per_step + np.arange(self.windows_per_step)
            if any(stream.reads(index, self.T, file) for stream, _, index in self.by_source(draw)):
                return step
        return steps

    def bounds(self, tokens, draw):
        """Return the bounds [start, end) of each token's document in its window: two (B, T), or None, None."""
        B, T = tokens.shape
        t = np.arange(T)
        if self.window_split == "none":
            return None, None
        if self.window_split == "random":
            cut = (12 + hashed(self.seed, draw, 1) % np.uint64(T - 23)).astype(np.int64)[:, None]  # (B, 1)
            return np.where(t < cut, 0, cut), np.where(t < cut, cut, T)
        last = tokens == self.eos_id  # (B, T): the last token of a document
        first = np.roll(last, 1, axis=1)
        last[:, -1], first[:, 0] = True, True
        start = np.maximum.accumulate(np.where(first, t, 0), axis=1)
        end = np.minimum.accumulate(np.where(last, t + 1, T)[:, ::-1], axis=1)[:, ::-1]
        return start, end

    def next_token(self, tokens, end):
        """Every position predicts the next token, except the last position of each document."""
        B, T = tokens.shape
        targets = np.full((B, T), -1, np.int64)
        targets[:, :-1] = tokens[:, 1:]
        if end is not None:
            targets[np.arange(T) + 1 == end] = -1
        return {"tokens": tokens, "positions": np.arange(B * T), "targets": targets.reshape(-1)}

    def masked(self, tokens, draw, start, objective):
        """A fraction of each window's positions, chosen at random, are hidden and predicted. For example, 2 of 4:

            tokens      The   cat   sat   eos
            score        71    12    40   max     random numbers; special tokens score highest
            hidden       no   yes   yes    no     the 2 lowest, but never a special token
            shown       The  mask  mask   eos
            positions           1     2           where something is predicted
            targets           cat   sat

        If the position before a token predicts it, positions are 0 and 1, and the first token of a document stays.
        """
        B, T = tokens.shape
        n, most = round(objective.mask_ratio * T), self.most_masked
        before = objective.predict_from == "before"
        score = hashed(hashed(self.seed, draw, 2)[:, None], np.arange(T))  # (B, T)
        ordinary = self.ordinary[tokens]
        score[~ordinary] = np.iinfo(np.uint64).max
        lowest = np.argpartition(score, (n - 1, most - 1), axis=1)[:, :most]  # (B, most), the n lowest first

        hidden = np.zeros((B, T), bool)
        np.put_along_axis(hidden, lowest, np.arange(most) < n, axis=1)
        hidden &= ordinary  # a window may have fewer than n ordinary tokens
        if before:
            hidden &= np.arange(T) > (0 if start is None else start)

        # What the input shows there: the mask token, another ordinary token, or the token itself.
        shown, instead = tokens.copy(), tokens[hidden]
        u = mix(score[hidden]) / 2.0**64  # a second random number for each, from 0 to 1
        swap = (u >= self.show_mask) & (u < self.show_random)
        other = mix(score[hidden][swap] ^ np.uint64(1)) % np.uint64(len(self.ordinary_ids))
        instead[u < self.show_mask] = self.mask_id
        instead[swap] = self.ordinary_ids[other.astype(np.int64)]
        shown[hidden] = instead

        # Tensors of the same shape, B * most, also where fewer tokens are hidden: the others have the target -1.
        chosen = np.sort(lowest, axis=1)  # (B, most), positions in the window
        predicted = np.take_along_axis(hidden, chosen, axis=1)
        targets = np.where(predicted, np.take_along_axis(tokens, chosen, axis=1), -1)
        positions = np.arange(B)[:, None] * T + chosen - before * predicted  # in the flattened batch
        return {"tokens": shown, "positions": positions.reshape(-1), "targets": targets.reshape(-1)}


def batch_problems(cfg, T, world_size):
    """Yield what does not fit between train.py's settings, windows of T tokens and the data, one sentence each."""
    T, given, ratios = max(1, T), cfg.global_batch_tokens, cfg.mask_ratio
    windows, rest = divmod(given, T)
    if rest or not windows or windows % world_size:
        yield f"global_batch_tokens={given}: must be a multiple of seq_len * processes = {T} * {world_size}"
    elif (n := round(cfg.clm_windows * windows / world_size, 6)) % 1:
        each = f"is {n:g} of the {windows // world_size} windows that each process has in a step"
        yield f"clm_windows={cfg.clm_windows}: {each}, must be a whole number of them"
    if ratios and not round(min(ratios) * T):
        yield f"mask_ratio={ratios}: masks not one token of {T}"
    if cfg.window_split == "random" and T < 24:
        yield f"window_split=random: needs seq_len of at least 24, got {T}"
    if cfg.data == EMBEDDED_FOLDER and not Path(cfg.data).exists():  # train.py prepares it
        return
    try:
        data = load_data(cfg.data)
    except DataError as error:
        yield str(error)
        return
    vocab = next(iter(data.sources.values()))["tokenizer"]["vocab_size"]
    if 0 < cfg.vocab_size < vocab:
        yield f"vocab_size={cfg.vocab_size}: the tokenizer of {cfg.data} needs {vocab}"
    for folder, meta in data.sources.items():
        for split, needed in (("train", -(-windows * data.draws[folder] // CYCLE) * T), ("val", T)):
            tokens = meta["splits"][split]["tokens"]
            if tokens < needed:
                yield f"{folder}: {tokens} {split} tokens are fewer than the {needed} of one batch"


def streams_of(data, split):
    """Return the TokenStreams of one split of all sources of a Data."""
    return [TokenStream(folder, meta, split) for folder, meta in data.sources.items()]


def make_batches(cfg, data, tokenizer, T):
    """Return the Batches of training, and {folder: (its fraction, the Batches of its validation)} of each source.

    Validation always has the same windows and masks, whatever the run masks. cfg: train.py's settings. data: see
    `load_data`. T: tokens of a window.
    """
    windows, draws, val = cfg.global_batch_tokens // T, [*data.draws.values()], {}
    for n, stream in zip(draws, streams_of(data, "val")):
        its = min(-(-cfg.eval_windows * n // CYCLE), len(stream) // T)
        val[stream.folder] = n / CYCLE, Batches([stream], tokenizer, 0, T, its, cfg.window_split)
    options = cfg.window_split, max(cfg.mask_ratio), cfg.mask_proportions
    return Batches(streams_of(data, "train"), tokenizer, cfg.seed, T, windows, *options, draws), val


def prefetch(function, jobs, depth=2):
    """Yield function(*job) for each job. A background thread works `depth` jobs ahead."""
    with ThreadPoolExecutor(1) as thread:
        ahead = deque()
        try:
            for job in jobs:
                ahead.append(thread.submit(function, *job))
                if len(ahead) > depth:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            for future in ahead:
                future.cancel()


def to_device(x, device):
    """Return a tensor, or a batch with all of its tensors, on a device. The copy to a GPU does not hold up the host."""
    if device.type == "cpu":
        return x
    if isinstance(x, dict):
        return {name: to_device(tensor, device) for name, tensor in x.items()}
    return x.pin_memory().to(device, non_blocking=True)
