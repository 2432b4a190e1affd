"""The batch is a function of (data, seed, step), masks included."""

import base64
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data.loader import OPEN_SHARDS, Batches, TokenStream, streams_of
from data.objective import CLM, MLM
from data.prepare import prepare
from data.shards import CYCLE, changed_shard_in_background, draws_of, load_data, load_meta
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from helpers import flip_bit
from prepare_helpers import tokens as tokens_of

BERT = MLM(0.25, proportions=(0.8, 0.1, 0.1))
BEFORE = MLM(0.2, "before")


@pytest.fixture(scope="module")
def stream(data_dir):
    return TokenStream(data_dir, load_meta(data_dir), "train")


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("embedded")


def joined(batches):
    """Micro-batches as the batch they are parts of: positions are counted in the whole."""
    T = batches[0]["tokens"].shape[1]
    rows = np.cumsum([0] + [len(b["tokens"]) for b in batches])
    out = {k: torch.cat([b[k] for b in batches]) for k in batches[0] if k != "positions"}
    return out | {"positions": torch.cat([b["positions"] + int(r) * T for b, r in zip(batches, rows)])}


def test_a_stream_reads_across_shards_and_keeps_few_open(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{i} a b c\n\n\n" for i in range(280)))
    meta = prepare(tmp_path / "text.txt", tmp_path / "out", val_fraction=0.1, shard_bytes=12)
    stream, whole = TokenStream(tmp_path / "out", meta, "train"), np.array(tokens_of(tmp_path / "out", "train"))
    assert len(stream) == len(whole) and len(stream.files) > 2 * OPEN_SHARDS
    for T in (1, 32, 999):  # the last two span several shards
        windows = stream.windows(np.arange(len(whole) // T), T)
        assert (windows.reshape(-1) == whole[: windows.size]).all()
    open_files = [os.readlink(file) for file in Path("/proc/self/fd").glob("*") if file.is_symlink()]
    assert sum(str(tmp_path) in file for file in open_files) == OPEN_SHARDS * Path("/proc").exists()


@pytest.mark.parametrize("objective", [CLM(), BERT, BEFORE])
@pytest.mark.parametrize("split", ["none", "random", "document"])
def test_a_batch_does_not_depend_on_how_it_is_made(stream, tokenizer, objective, split):
    one = Batches([stream], tokenizer, 3, 64, 12, split)
    other = Batches([stream], tokenizer, 3, 64, 12, split)
    for step in (0, 7, 1234):
        whole = one.batch(step, objective)
        for size in (1, 3, 4, 6):
            parts = [other.batch(step, objective, range(i, i + size)) for i in range(0, 12, size)]
            torch.testing.assert_close(joined(parts), whole, rtol=0, atol=0)
    different = Batches([stream], tokenizer, 4, 64, 12, split).batch(7, objective)
    assert not torch.equal(different["tokens"], one.batch(7, objective)["tokens"])


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 397, 4097])
def test_each_window_once_an_epoch_in_another_order_each_time(stream, tokenizer, n):
    """Of any number of windows. A second seed has another order."""
    T, W = len(stream) // n, 5 + n // 20
    batches = Batches([stream], tokenizer, 3, T, W)
    assert batches.n_windows == [len(stream) // T]
    (n,) = batches.n_windows
    seen = torch.cat([batches.batch(s, CLM())["tokens"] for s in range(-(-3 * n // W))])[: 3 * n]
    everything = sorted(map(bytes, stream.windows(np.arange(n), T)))
    epochs = [list(map(bytes, seen[e * n : (e + 1) * n].numpy())) for e in range(3)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    if n > 60:
        place = {window: i for i, window in enumerate(everything)}
        orders = np.array([[place[window] for window in epoch] for epoch in [everything, *epochs]])
        assert abs(np.corrcoef(orders) - np.eye(4)).max() < 0.4
        other = Batches([stream], tokenizer, 4, T, n).batch(0, CLM())["tokens"].numpy()
        assert sum(bytes(x) == y for x, y in zip(other, epochs[0])) < n / 4


def test_each_source_of_a_mixture_has_its_own_epochs_and_shuffle(mixture, tokenizer):
    """The first one's windows come as in a run with it alone. Streams of equal length are not shuffled alike."""
    T, W, (a, b) = 512, 7, streams_of(load_data(mixture), "train")
    for streams, draws in ([a, b], (700, 300)), ([a, a], (500, 500)):
        batches = Batches(streams, tokenizer, 3, T, W, draws=draws)
        steps = range(5 * max(batches.n_windows) // W)
        windows = torch.cat([batches.batch(step, CLM())["tokens"] for step in steps])
        source = batches.source[np.arange(len(windows)) % CYCLE]
        for k, (stream, n) in enumerate(zip(streams, batches.n_windows)):
            drawn = windows[source == k]
            assert batches.epochs(len(steps))[stream.folder] == pytest.approx(len(drawn) / n, abs=1 / n)
            alone = Batches([stream], tokenizer, 3, T, len(drawn)).batch(0, CLM())["tokens"]
            assert torch.equal(drawn, alone) == (k == 0)
            everything = sorted(map(bytes, stream.windows(np.arange(n), T)))
            for epoch in range(len(drawn) // n):
                assert sorted(map(bytes, drawn[epoch * n : (epoch + 1) * n].numpy())) == everything
    for draws in (1, 999), (500, 300, 150, 50):  # after each draw, each source has had its fraction to about a draw
        source = Batches([a] * len(draws), tokenizer, 3, T, W, draws=draws).source
        for k, n in enumerate(draws):
            assert abs(np.cumsum(source == k) - n / CYCLE * np.arange(1, CYCLE + 1)).max() < len(draws) / 2 + 0.5


def test_the_fingerprint_of_a_mixture_and_what_cannot_be_mixed(mixture, tmp_path):
    a, b = draws_of(mixture)
    prints = {load_data(data).fingerprint for data in (mixture, a, b, f"{a}:0.6,{b}:0.4")}
    assert len(prints) == 4 and load_data(a).fingerprint == load_meta(a)["fingerprint"]
    for fractions in "0.7 0.31", "1.2 -0.2", "0.7 x", "nan 1", "inf 0.5", "0.0001 0.9999":
        with pytest.raises(DataError, match="data=a:.*expected fractions of at most three decimals, whose sum is 1"):
            draws_of("a:{},b:{}".format(*fractions.split()))
    (tmp_path / "bytes.tiktoken").write_bytes(b"".join(base64.b64encode(bytes([i])) + b" %d\n" % i for i in range(256)))
    prepare("embedded", tmp_path / "c", tmp_path / "bytes.tiktoken", max_tokens=9999)
    with pytest.raises(DataError, match="not all prepared with the same tokenizer"):
        load_data(f"{a}:0.5,{tmp_path / 'c'}:0.5")
    copy = shutil.copytree(b, tmp_path / "copy")
    flip_bit(copy / "val-00000.bin", 9)
    assert changed_shard_in_background(load_data(f"{a}:0.7,{copy}:0.3")).result() == copy / "val-00000.bin"


def test_clm_targets(stream, tokenizer):
    for split in ("none", "random", "document"):
        batch = Batches([stream], tokenizer, 1, 64, 6, split).batch(2, CLM())
        tokens, targets = batch["tokens"], batch["targets"].view(6, 64)
        assert torch.equal(batch["positions"], torch.arange(6 * 64))
        end = batch["doc_end"] if split != "none" else torch.full_like(tokens, 64)
        last = torch.arange(64) + 1 == end
        assert (targets[last] == -1).all() and last[:, -1].all()
        assert torch.equal(targets[:, :-1][~last[:, :-1]], tokens[:, 1:][~last[:, :-1]])


def predicted(batch):
    keep = batch["targets"] >= 0
    return {*zip(batch["positions"][keep].tolist(), batch["targets"][keep].tolist())}


@pytest.mark.parametrize("ratio", [0.05, 0.4, 0.9])
def test_mlm_masks_the_exact_number_and_never_a_special_token(stream, tokenizer, ratio):
    """A larger ratio hides the same tokens and more."""
    T, W, n = 512, 8, round(ratio * 512)
    batches = Batches([stream], tokenizer, 1, T, W)
    special = torch.tensor(sorted(tokenizer.special_tokens.values()))
    for step in range(20):
        batch, plain = batches.batch(step, MLM(mask_ratio=ratio)), batches.batch(step, CLM())["tokens"]
        positions, targets = batch["positions"], batch["targets"]
        assert len(positions) == len(set(positions.tolist())) == W * n
        assert torch.equal(torch.bincount(positions // T, minlength=W), torch.full((W,), n))
        hidden = positions[targets >= 0]
        assert torch.equal(plain.flatten()[hidden], targets[targets >= 0]) and not torch.isin(targets, special).any()
        shown = plain.clone().flatten()
        shown[hidden] = tokenizer.mask_id
        assert torch.equal(shown.view(W, T), batch["tokens"])  # nothing else is touched
        if ratio < 0.8:  # these windows have few special tokens
            assert (targets >= 0).all()
        assert predicted(batch) < predicted(batches.batch(step, MLM(mask_ratio=0.95)))


@pytest.mark.parametrize("ratio, hidden", [(0.0, 0), (0.001, 0), (1.5, 96)])
def test_a_mask_ratio_that_hides_no_token_or_too_many_is_refused(stream, tokenizer, ratio, hidden):
    with pytest.raises(DataError, match=f"mask_ratio={ratio}: it hides {hidden} of the 64 tokens of a window"):
        Batches([stream], tokenizer, 1, 64, 2).batch(0, MLM(mask_ratio=ratio))


def test_an_objective_cannot_change_the_bounds_that_it_gets(stream, tokenizer):
    """It returns new ones: where nothing is split, the loader would take its own for those of the model."""

    class InPlace(CLM):
        def examples(self, w):
            w.end[:] = w.position + 1
            return super().examples(w)

    with pytest.raises(ValueError, match="read-only"):
        Batches([stream], tokenizer, 1, 64, 2).batch(0, InPlace())


def test_more_targets_than_an_objective_says_are_refused(stream, tokenizer):
    class Few(CLM):
        def n_predicted(self, T):
            return T // 2

    with pytest.raises(ValueError, match="clm: a window has 63 targets, but n_predicted says 32 at most"):
        Batches([stream], tokenizer, 1, 64, 6).batch(0, Few())


def test_shapes_stay_where_a_window_has_too_few_ordinary_tokens(tokenizer):
    class Stream:  # two windows: one of eos alone but for three tokens, one of padding alone
        def __len__(self):
            return 32

        def windows(self, index, T):
            rows = np.full((2, T), tokenizer.eos_id)
            rows[0, [3, 5, 11]] = 7, 8, 9
            rows[1] = tokenizer.pad_id
            return rows[index]

    batch = Batches([Stream()], tokenizer, 0, 16, 2).batch(0, MLM(mask_ratio=0.5))
    assert len(batch["positions"]) == len(set(batch["positions"].tolist())) == 16
    assert sorted(batch["targets"].tolist()) == [-1] * 13 + [7, 8, 9]
    assert (batch["tokens"] == tokenizer.mask_id).sum() == 3


def test_masks_are_drawn_anew_each_epoch_and_uniformly(stream, tokenizer):
    T = 64
    batches = Batches([stream], tokenizer, 1, T, 1)
    (n,), masks = batches.n_windows, {}
    whole, plain = (batches.batch(0, objective, range(3 * n)) for objective in (BERT, CLM()))
    positions = whole["positions"].view(3 * n, -1) % T
    for window, chosen in zip(plain["tokens"], positions.tolist()):
        masks.setdefault(bytes(window.numpy()), []).append(tuple(chosen))
    assert all(len(set(m)) == len(m) for m in masks.values())
    hits = torch.bincount(positions.flatten()) / positions.numel() * T
    assert hits.min() > 0.7 and hits.max() < 1.3


@pytest.mark.parametrize("split", ["none", "random", "document"])
def test_the_position_before_predicts_a_hidden_token_of_its_document(stream, tokenizer, split):
    T, W = 64, 40
    batches = Batches([stream], tokenizer, 1, T, W, split)
    batch, plain = batches.batch(0, MLM(mask_ratio=0.4, predict_from="before")), batches.batch(0, CLM())
    keep, hidden = batch["targets"] >= 0, (batch["tokens"] == tokenizer.mask_id).flatten()
    at = batch["positions"][keep]
    assert torch.equal(plain["tokens"].flatten()[at + 1], batch["targets"][keep])
    assert hidden[at + 1].all() and hidden.sum() == keep.sum() > 0.3 * T * W
    assert torch.equal(batch["tokens"].flatten()[~hidden], plain["tokens"].flatten()[~hidden])
    start = plain["doc_start"] if split != "none" else torch.zeros(W, T)
    first = (start == torch.arange(T)).flatten()
    assert not hidden[first].any() and hidden[first.roll(1)].any()


def test_mask_proportions(stream, tokenizer):
    batches = Batches([stream], tokenizer, 1, 64, 64)
    masked = swapped = same = 0
    for step in range(5):
        batch = batches.batch(step, MLM(mask_ratio=0.5, proportions=(0.8, 0.1, 0.1)))
        keep = batch["targets"] >= 0
        shown, target = batch["tokens"].flatten()[batch["positions"][keep]], batch["targets"][keep]
        masked += (shown == tokenizer.mask_id).sum().item()
        same += (shown == target).sum().item()
        others = shown[(shown != tokenizer.mask_id) & (shown != target)]
        swapped += len(others)
        assert others.max() < len(tokenizer.ranks)  # ordinary tokens only
    total = masked + swapped + same
    assert [masked / total, swapped / total, same / total] == pytest.approx([0.8, 0.1, 0.1], abs=0.01)


def test_bounds_of_documents(stream, tokenizer):
    """Random cuts are in test_paper.py."""
    batch = Batches([stream], tokenizer, 1, 64, 50, "document").batch(0, CLM())
    assert batch["doc_start"].dtype == batch["doc_end"].dtype == torch.int32
    for tokens, start, end in zip(batch["tokens"], batch["doc_start"], batch["doc_end"]):
        last = [*(tokens == tokenizer.eos_id).nonzero().flatten().tolist(), 63]
        for t in range(64):
            assert end[t] == min(i for i in last if i >= t) + 1
            assert start[t] == max((i + 1 for i in last if i < t), default=0)


def test_an_id_outside_the_vocabulary_is_named(data_dir, tmp_path):
    shutil.copytree(data_dir, tmp_path / "data")
    shard = np.memmap(tmp_path / "data" / "train-00001.bin", "<u2", "r+")
    shard[77] = 60_000
    stream = TokenStream(tmp_path / "data", load_meta(tmp_path / "data"), "train")
    with pytest.raises(Damaged, match="train-00001.bin: id 60000 is outside the vocabulary of 4096 ids"):
        stream.windows(np.arange(len(stream) // 32), 32)
