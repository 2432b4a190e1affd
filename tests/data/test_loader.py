"""The batch is a function of (data, seed, step), masks included."""

import os
import shutil
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import model
from data.loader import OPEN_SHARDS, Batches, TokenStream, streams_of
from data.objective import CLM, MLM, Examples
from data.prepare import prepare
from data.shards import CYCLE, changed_shard_in_background, draws_of, load_data, load_meta
from data.tokenizer_files import read_tokenizer
from errors import Damaged, DataError
from helpers import flip_bit
from model import ModelConfig, PretrainingLoss, Transformer
from prepare_helpers import tokens as tokens_of

BERT, BEFORE = MLM(0.5, proportions=(0.8, 0.1, 0.1)), MLM(0.2, "before")
TOKENIZER = read_tokenizer("embedded")


@pytest.fixture(scope="module")
def stream(data_dir):
    return TokenStream(data_dir, load_meta(data_dir), "train")


def joined(batches):
    """Micro-batches as the batch they are parts of: positions are counted in the whole."""
    parts = [b | {"positions": b["positions"] + i * b["tokens"].numel()} for i, b in enumerate(batches)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def test_a_stream_reads_across_shards_and_keeps_few_open(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i} a b c\n\n\n" for i in range(280)))
    meta = prepare(tmp_path / "text.txt", tmp_path / "out", val_fraction=0.1, shard_bytes=12)
    stream, whole = TokenStream(tmp_path / "out", meta, "train"), np.array(tokens_of(tmp_path / "out", "train"))
    assert len(stream) == len(whole) and len(stream.files) > 2 * OPEN_SHARDS
    for T in (1, 32, 999):  # the last two span several shards
        windows = stream.windows(np.arange(len(whole) // T), T)
        assert (windows.reshape(-1) == whole[: windows.size]).all()
    stream.vocab_size = whole.max()
    with pytest.raises(Damaged, match=r"train-\d*.bin: id (\d+) is outside the vocabulary of \1 ids"):
        stream.windows(np.arange(len(whole) // T), T)
    open_files = [os.readlink(file) for file in Path("/proc/self/fd").glob("*") if file.is_symlink()]
    assert sum(str(tmp_path) in file for file in open_files) == OPEN_SHARDS * Path("/proc").exists()


@pytest.mark.parametrize("objective", [CLM(), BERT, BEFORE])
@pytest.mark.parametrize("split", ["none", "random", "document"])
def test_a_batch_does_not_depend_on_how_it_is_made(stream, objective, split):
    one, other = (Batches([stream], TOKENIZER, 3, 64, 12, split) for _ in range(2))
    for step in (0, 7, 1234):
        whole = one.batch(step, objective)
        for size in (1, 3, 4, 6):
            parts = [other.batch(step, objective, range(i, i + size)) for i in range(0, 12, size)]
            torch.testing.assert_close(joined(parts), whole, rtol=0, atol=0)
        windows = [*zip([objective, MLM(0.3), MLM(0.3), objective], range(4))]
        parts = [other.batch(step, what, [i]) for what, i in windows]
        torch.testing.assert_close(one.micro_batch(step, windows), joined(parts), rtol=0, atol=0)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 397, 4097])
def test_each_window_once_an_epoch_in_another_order_each_time(stream, n):
    """Of any number of windows. A second seed has another order."""
    T, W = len(stream) // n, 5 + n // 20
    batches, n = Batches([stream], TOKENIZER, 3, T, W), len(stream) // T
    assert batches.n_windows == [n]
    seen = torch.cat([batches.batch(s, CLM())["tokens"] for s in range(-(-3 * n // W))])[: 3 * n]
    everything = sorted(map(bytes, stream.windows(np.arange(n), T)))
    epochs = [list(map(bytes, epoch.numpy())) for epoch in seen.split(n)]
    assert [sorted(epoch) for epoch in epochs] == [everything] * 3
    if n > 60:
        place = {window: i for i, window in enumerate(everything)}
        orders = np.array([[place[window] for window in epoch] for epoch in [everything, *epochs]])
        assert abs(np.corrcoef(orders) - np.eye(4)).max() < 0.4
        other = Batches([stream], TOKENIZER, 4, T, n).batch(0, CLM())["tokens"].numpy()
        assert sum(bytes(x) == y for x, y in zip(other, epochs[0])) < n / 4


def test_each_source_of_a_mixture_has_its_own_epochs_and_shuffle(mixture):
    """The first one's windows come as in a run with it alone. Streams of equal length are not shuffled alike."""
    T, W, (a, b) = 512, 7, streams_of(load_data(mixture), "train")
    for streams, draws in ([a, b], (700, 300)), ([a, a], (500, 500)):
        batches = Batches(streams, TOKENIZER, 3, T, W, draws=draws)
        steps = range(5 * max(batches.n_windows) // W)
        windows = torch.cat([batches.batch(step, CLM())["tokens"] for step in steps])
        source = batches.source[np.arange(len(windows)) % CYCLE]
        for k, (stream, n) in enumerate(zip(streams, batches.n_windows)):
            drawn = windows[source == k]
            assert batches.epochs(len(steps))[stream.folder] == pytest.approx(len(drawn) / n, abs=1 / n)
            alone = Batches([stream], TOKENIZER, 3, T, len(drawn)).batch(0, CLM())["tokens"]
            assert torch.equal(drawn, alone) == (k == 0)
            everything = sorted(map(bytes, stream.windows(np.arange(n), T)))
            for epoch in range(len(drawn) // n):
                assert sorted(map(bytes, drawn[epoch * n : (epoch + 1) * n].numpy())) == everything
    for draws in (1, 999), (500, 300, 150, 50):  # after each draw, each source has had its fraction to about a draw
        source = Batches([a] * len(draws), TOKENIZER, 3, T, W, draws=draws).source
        for k, n in enumerate(draws):
            assert abs(np.cumsum(source == k) - n / CYCLE * np.arange(1, CYCLE + 1)).max() < len(draws) / 2 + 0.5


def test_the_fingerprint_of_a_mixture_and_what_cannot_be_mixed(mixture, tmp_path):
    a, b = draws_of(mixture)
    prints = {load_data(data).fingerprint for data in (mixture, a, b, f"{a}:0.6,{b}:0.4")}
    assert len(prints) == 4 and load_data(a).fingerprint == load_meta(a)["fingerprint"]
    for fractions in "0.7 0.31", "1.2 -0.2", "0.7 x", "nan 1", "inf 0.5", "0.0001 0.9999":
        with pytest.raises(DataError, match="data=a:.*expected fractions of at most three decimals, whose sum is 1"):
            draws_of("a:{},b:{}".format(*fractions.split()))
    ranks = TOKENIZER.content.splitlines(keepends=True)[:256]
    (tmp_path / "bytes.tiktoken").write_bytes(b"".join(ranks))
    prepare("embedded", tmp_path / "c", tmp_path / "bytes.tiktoken", max_tokens=9999)
    with pytest.raises(DataError, match="not all prepared with the same tokenizer"):
        load_data(f"{a}:0.5,{tmp_path / 'c'}:0.5")
    copy = shutil.copytree(b, tmp_path / "copy")
    flip_bit(copy / "val-00000.bin", 9)
    assert changed_shard_in_background(load_data(f"{a}:0.7,{copy}:0.3")).result() == copy / "val-00000.bin"


@pytest.mark.parametrize("objective, split, tokens, shown, targets", [
    (CLM(), "none", "7 8 9 E 10 11 E 12", "7 8 9 E 10 11 E 12", "8 9 E 10 11 E 12 ."),
    (CLM(), "document", "7 8 9 E 10 11 E 12", "7 8 9 E 10 11 E 12", "8 9 E . 11 E . ."),
    (MLM(1.0), "none", "7 8 9 E 10 11 E 12", "M M M E M M E M", "7 8 9 . 10 11 . 12"),
    (MLM(1.0, "before"), "none", "7 8 9 E 10 11 E 12", "7 M M E M M E M", "8 9 . 10 11 . 12 ."),
    (MLM(1.0, "before"), "document", "7 8 9 E 10 11 E 12", "7 M M E 10 M E 12", "8 9 . . 11 . . ."),
    (MLM(0.5), "none", "E 7 E E 8 E E E", "E M E E M E E E", ". 7 . _ 8 _ _ _"),  # few ordinary tokens
    (MLM(0.25), "none", "P P P P P P P P", "P P P P P P P P", ". . _ _ _ _ _ _"),
])  # fmt: skip
def test_small_windows(objective, split, tokens, shown, targets):
    """By hand. E, M and P: the special tokens. A dot: no target. _: not among the positions."""
    ids = {"E": TOKENIZER.eos_id, "M": TOKENIZER.mask_id, "P": TOKENIZER.pad_id, ".": -1, "_": None}
    row, shown, targets = ([ids[x] if x in ids else int(x) for x in text.split()] for text in (tokens, shown, targets))
    stream = MagicMock(windows=lambda index, T: np.array([row]), __len__=lambda self: 8)
    batch = Batches([stream], TOKENIZER, 0, 8, 1, split).batch(0, objective)
    assert batch["tokens"].tolist() == [shown]
    assert batch["positions"].tolist() == [t for t in range(8) if targets[t] is not None]
    assert batch["targets"].tolist() == [x for x in targets if x is not None]
    if split == "document":  # random cuts are in test_paper.py
        assert batch["doc_start"].tolist() == [[0, 0, 0, 0, 4, 4, 4, 7]]
        assert batch["doc_end"].tolist() == [[4, 4, 4, 4, 7, 7, 7, 8]] and batch["doc_end"].dtype == torch.int32


@pytest.mark.parametrize("ratio", [0.05, 0.4, 0.9])
def test_mlm_masks_the_exact_number_and_never_a_special_token(stream, ratio):
    """A larger ratio hides the same tokens and more."""
    T, W, n = 512, 160, round(ratio * 512)
    batches = Batches([stream], TOKENIZER, 1, T, W)
    batch, more, plain = (batches.batch(1, objective) for objective in (MLM(ratio), MLM(0.95), CLM()))
    tokens, positions, targets = plain["tokens"].flatten(), batch["positions"], batch["targets"]
    assert torch.bincount(positions.unique() // T).tolist() == [n] * W
    hidden = positions[targets >= 0]
    assert torch.equal(tokens[hidden], targets[targets >= 0])
    assert not torch.isin(targets, torch.tensor([*TOKENIZER.special_tokens.values()])).any()
    assert torch.equal(tokens.index_fill(0, hidden, TOKENIZER.mask_id), batch["tokens"].flatten())  # and nothing else
    assert ratio > 0.8 or (targets >= 0).all()  # these windows have few special tokens
    assert {*hidden.tolist()} < {*more["positions"][more["targets"] >= 0].tolist()}


class InPlace(CLM):
    def examples(self, w):
        w.end[:] = w.position + 1
        return super().examples(w)


class Weighted(MLM):
    def examples(self, w):
        shown, targets, *_ = super().examples(w)
        targets[:, ::5] = -1
        return Examples(shown, targets, None, w.end * 0 + w.position + 9, w.tokens % 7 + self.mask_ratio - 0.5)


@pytest.mark.parametrize("objective, message", [
    (InPlace(), "read-only"),  # it must return new bounds
    (Weighted(0.4), "mlm: a weight is below 0"),
])  # fmt: skip
def test_what_an_objective_must_not_do_is_refused(stream, objective, message):
    batches = Batches([stream], TOKENIZER, 1, 64, 6)
    with pytest.raises((DataError, ValueError), match=message):
        batches.batch(0, objective)
    with pytest.raises(ValueError, match="mlm: only some of its examples have weights"):
        batches.micro_batch(0, [(Weighted(0.7), 0), (MLM(), 1)])


@pytest.mark.parametrize("plain", [False, True])
def test_the_loss_is_the_mean_over_the_weights(stream, plain, monkeypatch):
    """The windows of a micro-batch have other ratios, and so other weights. Over several chunks."""
    monkeypatch.setattr(model.plain_cross_entropy, "__defaults__", (9,))
    torch.manual_seed(0)
    transformer, ratios = Transformer(ModelConfig(4096, 1, 2, 1, 16, 16, 64)), torch.tensor([0.5, 0.9, 0.7])
    windows = [(Weighted(ratio), i) for i, ratio in enumerate(ratios.tolist())]
    batch = Batches([stream], TOKENIZER, 1, 64, 3).micro_batch(0, windows)
    tokens, positions, targets = batch["tokens"], batch["positions"], batch["targets"]
    assert batch["weights"].dtype == torch.float32 and len(positions) == 32 + 58 + 45 and batch["doc_end"][2, 60] == 69
    weights = (targets % 7 + ratios[positions // 64] - 0.5) * (targets >= 0)
    hidden = transformer(tokens, False, batch["doc_start"], batch["doc_end"]).flatten(0, 1)
    logits = transformer.logits(hidden[positions])
    total = (F.cross_entropy(logits, targets, ignore_index=-1, reduction="none") * weights).sum()
    found = PretrainingLoss(transformer, plain=plain)(batch, False)
    torch.testing.assert_close(found, (total, weights.sum()), rtol=1e-5, atol=0)
    gradients = (torch.autograd.grad(loss, transformer.parameters())[0] for loss in (found[0], total))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_masks_are_drawn_anew_each_epoch_uniformly_and_in_their_proportions(stream):
    batches, masks = Batches([stream], TOKENIZER, 1, 64, 1), {}
    windows = range(3 * batches.n_windows[0])
    batch, tokens = batches.batch(0, BERT, windows), batches.batch(0, CLM(), windows)["tokens"]
    positions = batch["positions"].view(len(windows), -1) % 64
    for window, chosen in zip(tokens, positions.tolist()):
        masks.setdefault(bytes(window.numpy()), []).append(tuple(chosen))
    assert all(len(set(m)) == len(m) for m in masks.values())
    hits = torch.bincount(positions.flatten()) / positions.numel() * 64
    assert hits.min() > 0.7 and hits.max() < 1.3
    keep = batch["targets"] >= 0
    shown, target = batch["tokens"].flatten()[batch["positions"][keep]], batch["targets"][keep]
    masked, same = shown == TOKENIZER.mask_id, shown == target
    assert shown[~masked & ~same].max() < len(TOKENIZER.ranks)  # ordinary tokens only
    assert [x.float().mean().item() for x in (masked, same)] == pytest.approx([0.8, 0.1], abs=0.01)
