"""A checkpoint on disk is whole or absent, and a flipped byte is noticed."""

import json
import random

import pytest
import torch

import checkpoint
from data.files import write_whole
from errors import Damaged, DataError


@pytest.fixture
def state():
    torch.manual_seed(0)
    return {
        "step": 7,
        "model": {"a": torch.randn(50, 30), "b": torch.arange(9)},
        "settings": {"lr": 0.1, "keep": (1, 2)},
        "config": {"d_model": 8},
        "tokenizer": {"name": "x"},
        "tokenizer_ranks": b"IQ== 0\n" * 50,
    }


def test_round_trip(state, tmp_path):
    path = checkpoint.path_of(tmp_path, 7)
    checkpoint.save(path, state)
    loaded = checkpoint.load(path)
    torch.testing.assert_close(loaded["model"], state["model"], rtol=0, atol=0)
    assert {k: v for k, v in loaded.items() if k != "model"} == {k: v for k, v in state.items() if k != "model"}
    assert [p.name for p in tmp_path.iterdir()] == ["ckpt-7.pt"]


def test_a_flipped_byte_is_noticed_or_harmless(state, tmp_path):
    path, rng, noticed = tmp_path / "ckpt-7.pt", random.Random(0), 0
    checkpoint.save(path, state)
    content = path.read_bytes()
    for _ in range(200):
        i = rng.randrange(len(content))
        path.write_bytes(content[:i] + bytes([content[i] ^ (1 << rng.randrange(8))]) + content[i + 1 :])
        try:
            loaded = checkpoint.load(path)
        except Damaged:
            noticed += 1
        else:  # in the padding between records: the content must be the same
            torch.testing.assert_close(loaded["model"], state["model"], rtol=0, atol=0)
            assert loaded["settings"] == state["settings"] and loaded["step"] == 7
    assert noticed > 130


def test_truncated_and_foreign_files_are_refused(state, tmp_path):
    path = tmp_path / "ckpt-7.pt"
    checkpoint.save(path, state)
    content = path.read_bytes()
    for size in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(Damaged, match="ckpt-7.pt"):
            checkpoint.load(path)
    torch.save({"weights": torch.zeros(3)}, path)
    with pytest.raises(Damaged, match="not a checkpoint of this project"):
        checkpoint.load(path)
    with pytest.raises(DataError, match="none.pt is neither a checkpoint nor a folder with one: no such file"):
        checkpoint.load(tmp_path / "none.pt")
    (tmp_path / "tuned").mkdir()
    (tmp_path / "tuned/model.pt").touch()
    with pytest.raises(DataError, match="neither a checkpoint nor a folder with one; give .*model.pt"):
        checkpoint.load(tmp_path / "tuned")


def test_a_pickle_is_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save({"step": Bomb()}, tmp_path / "ckpt-1.pt")
    with pytest.raises(Damaged):
        checkpoint.load(tmp_path / "ckpt-1.pt")
    assert not (tmp_path / "exploded").exists()


def test_newest_passes_over_damaged_ones(state, tmp_path):
    assert checkpoint.newest(tmp_path) is None
    for step in (5, 20, 100):
        checkpoint.save(checkpoint.path_of(tmp_path, step), state)
    (tmp_path / "ckpt-300.pt.partial").write_bytes(b"killed in the middle of a save")
    assert checkpoint.newest(tmp_path) == checkpoint.path_of(tmp_path, 100)
    checkpoint.path_of(tmp_path, 100).write_bytes(b"no")
    said = []
    assert checkpoint.newest(tmp_path, said.append) == checkpoint.path_of(tmp_path, 20)
    assert len(said) == 1 and "ckpt-100.pt is damaged" in said[0]
    for step in (5, 20):
        checkpoint.path_of(tmp_path, step).write_bytes(b"no")
    with pytest.raises(Damaged, match="no checkpoint in .* is whole"):
        checkpoint.newest(tmp_path, said.append)


def test_a_failed_write_leaves_what_was_there(state, tmp_path):
    path = tmp_path / "ckpt-7.pt"
    checkpoint.save(path, state)
    before = path.read_bytes()

    def fail(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        write_whole(path, fail)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["ckpt-7.pt"]


def test_prune_keeps_the_newest_and_the_named(tmp_path):
    for step in (1, 2, 3, 10, 20, 30):
        checkpoint.path_of(tmp_path, step).touch()
    checkpoint.prune(tmp_path, 30, keep_last=2, keep_steps=(2, 10, 99))
    assert checkpoint.steps(tmp_path) == [2, 10, 20, 30]
    checkpoint.prune(tmp_path, 10, keep_last=1, keep_steps=())  # resumed from 2: 20 and 30 were found damaged
    assert checkpoint.steps(tmp_path) == [10, 20, 30]


def test_what_a_run_did_not_make_is_left_alone(tmp_path):
    for name in ("ckpt-5.pt.77.partial", "config.json.77.partial", "notes.partial", "notes.txt.1.partial"):
        (tmp_path / name).touch()
    (tmp_path / "x.partial").mkdir()
    (tmp_path / "ckpt-9.pt").mkdir()
    settings = dict(out_dir=str(tmp_path), wandb_project="")
    checkpoint.open_records(dict(settings=settings, config={}, data="", versions={}), [], 1, resumed=None)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"notes.partial", "notes.txt.1.partial", "x.partial", "ckpt-9.pt", "config.json", "metrics.jsonl"}
    assert checkpoint.steps(tmp_path) == []


def test_metrics_past_the_checkpoint_are_cut(tmp_path):
    path = tmp_path / "metrics.jsonl"
    log = checkpoint.MetricsLog(path)
    for step in range(6):
        log.write(step=step, loss=1.5)
    with open(path, "a") as file:
        file.write('{"step": 2, "lo')  # killed while writing
    log = checkpoint.MetricsLog(path, after=3)
    log.write(step=4, loss=2.5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2, 3, 4]
    checkpoint.MetricsLog(path)
    assert path.read_text() == ""


def test_weights_and_biases_gets_the_same_lines(tmp_path, monkeypatch):
    import sys
    import types

    calls = []
    run = types.SimpleNamespace(log=lambda values, step: calls.append((step, values)))
    fake = types.SimpleNamespace(init=lambda **options: calls.append(options) or run)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = checkpoint.MetricsLog(tmp_path / "metrics.jsonl", wandb_project="encoders", settings={"lr": 0.1})
    log.write(step=3, loss=1.5)
    assert (
        calls[0]["project"] == "encoders" and calls[0]["config"] == {"lr": 0.1} and calls[0]["group"] == tmp_path.name
    )
    assert calls[1] == (3, {"step": 3, "loss": 1.5})
