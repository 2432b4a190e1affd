"""A checkpoint on disk is whole or absent, and a flipped byte is noticed."""

import copy
import json
import random

import pytest
import torch

import checkpoint
import run
from configurator import Settings
from errors import Damaged, DataError
from model import ModelConfig, Transformer
from study_helpers import state_of


@pytest.fixture
def state():
    """A checkpoint's dict, of a model with few tensors."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(vocab_size=30, n_layer=1, d_model=8, d_ff=8))
    return state_of(model, {"seed": 1}, step=7)


def test_a_flipped_byte_is_noticed_or_harmless_and_a_missing_end_noticed(state, tmp_path):
    path, rng, noticed = tmp_path / "ckpt-7.pt", random.Random(0), 0
    checkpoint.save(path, state)
    content, loaded = path.read_bytes(), checkpoint.load(path)
    assert {k: v for k, v in loaded.items() if k != "model"} == {k: v for k, v in state.items() if k != "model"}
    for _ in range(100):
        i = rng.randrange(len(content))
        path.write_bytes(content[:i] + bytes([content[i] ^ (1 << rng.randrange(8))]) + content[i + 1 :])
        try:
            loaded = checkpoint.load(path)
        except Damaged:
            noticed += 1
        else:  # in the padding between records: the content must be the same
            torch.testing.assert_close(loaded["model"], state["model"], rtol=0, atol=0)
            assert loaded["settings"] == state["settings"] and loaded["step"] == 7
    assert noticed > 65
    for size in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(Damaged, match="ckpt-7.pt"):
            checkpoint.load(path)
    with pytest.raises(DataError, match=r"none.pt is neither a .*: no such file"):
        checkpoint.load(tmp_path / "none.pt")


def test_weights_that_blocks_share_are_shared_when_loaded_and_tables_have_values(monkeypatch, tmp_path):
    class Shared(Transformer):
        def __init__(self, config):
            super().__init__(config)
            self.blocks[1].qkv.weight = self.blocks[0].qkv.weight
            self.table = torch.arange(config.n_layer)

    monkeypatch.setattr("checkpoint.Transformer", Shared)
    model = Shared(ModelConfig(vocab_size=30, n_layer=2, d_model=8, d_ff=8, tie_embeddings=True))
    checkpoint.save(tmp_path / "ckpt-7.pt", state_of(model, {"seed": 1}, step=7))
    loaded = checkpoint.load_model(tmp_path)
    assert loaded.blocks[1].qkv.weight is loaded.blocks[0].qkv.weight
    assert loaded.head.weight is loaded.embedding.weight and loaded.table.tolist() == [0, 1]
    assert sum(p.numel() for p in loaded.parameters()) == sum(p.numel() for p in model.parameters())


def test_a_pickle_is_never_executed(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    torch.save({"step": Bomb()}, tmp_path / "ckpt-1.pt")
    with pytest.raises(Damaged) as error:
        checkpoint.load(tmp_path / "ckpt-1.pt")
    assert not (tmp_path / "exploded").exists() and "weights_only" not in str(error.value)  # torch says: turn it off


DAMAGED = "ckpt-7.pt is damaged or not a checkpoint of this project: "
EDITED = "ckpt-7.pt was made by another model.py"
FORGED = [  # keys, what is there instead (None: nothing), and what is said
    *[([name], None, DAMAGED) for name in checkpoint.PARTS],
    *[(["config", "d_model"], value, EDITED) for value in (None, "8", -1)],
    (["config", "depth"], 3, EDITED),
    (["model", "norm.weight"], None, f"{EDITED}: these weights differ: norm.weight"),
    (["model", "norm.weight"], torch.zeros(3), f"{EDITED}: these weights differ: norm.weight"),
    (["model", "extra.weight"], torch.zeros(3), f"{EDITED}: these weights differ: extra.weight"),
    (["tokenizer_ranks"], b"no ranks", DAMAGED),
]


@pytest.mark.parametrize("keys, value, message", FORGED, ids=str)
def test_what_train_py_did_not_write_is_refused(state, tmp_path, keys, value, message):
    """Weights of an edited model.py are not called damaged: nobody should delete them."""
    *outer, last = keys
    forged = part = copy.deepcopy(state)
    for name in outer:
        part = part[name]
    part.pop(last, None)
    if value is not None:
        part[last] = value
    path = tmp_path / "ckpt-7.pt"
    torch.save(forged, path)
    with pytest.raises(Damaged if message == DAMAGED else DataError, match=message):
        loaded = checkpoint.load(path)
        checkpoint.tokenizer_of(loaded, path)
        checkpoint.model_from(loaded, path)
    if last == "depth":
        assert EDITED in checkpoint.problem(path)


def test_a_reader_beside_a_run_that_saves_and_prunes(state, tmp_path, monkeypatch):
    """The newest checkpoint is deleted after the reader has listed it."""
    old, new, read = checkpoint.path_of(tmp_path, 5), checkpoint.path_of(tmp_path, 10), checkpoint.read
    checkpoint.save(old, state)
    monkeypatch.setattr(checkpoint, "read", lambda path, weights: (old.exists() and old.rename(new), read(path))[1])
    assert checkpoint.open_newest(tmp_path)[0] == new


def test_a_link_to_nothing_is_reported(state, tmp_path, capsys):
    """A moved checkpoint whose link is left."""
    checkpoint.save(tmp_path / "ckpt-7.pt", state)
    (tmp_path / "ckpt-9.pt").symlink_to(tmp_path / "moved.pt")
    assert checkpoint.open_newest(tmp_path)[0] == tmp_path / "ckpt-7.pt"
    assert f"{tmp_path}/ckpt-9.pt is a link to {tmp_path}/moved.pt, which does not exist" in capsys.readouterr().out


def test_what_is_kept(tmp_path):
    """The newest checkpoints and those that are named stay, and what a run did not make."""
    for step in (1, 2, 3, 10, 20, 30):
        checkpoint.path_of(tmp_path, step).touch()
    checkpoint.prune(tmp_path, 30, keep_last=2, keep_steps=(2, 10, 99))
    assert checkpoint.steps(tmp_path) == [2, 10, 20, 30]
    checkpoint.prune(tmp_path, 10, keep_last=1, keep_steps=())  # resumed from 2: 20 and 30 were found damaged
    assert checkpoint.steps(tmp_path) == [10, 20, 30]

    (tmp_path / "ckpt-9.pt").mkdir()
    (tmp_path / "source/data").mkdir(parents=True)
    ours = "ckpt-5.pt.77.partial", "config.json.77.partial", "source/data/loader.py.77.partial"
    for name in (*ours, "notes.partial", "notes.txt.1.partial"):
        (tmp_path / name).touch()
    run.remove_partial_files(tmp_path)
    assert {path.name for path in tmp_path.rglob("*.partial")} == {"notes.partial", "notes.txt.1.partial"}
    assert checkpoint.steps(tmp_path) == [10, 20, 30]


def test_a_resumed_run_takes_its_own_folder_only(tmp_path):
    """Without a checkpoint yet: a log is continued whose run was to save later, but no folder of something else."""
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 8}\n{"step": 390, "loss": 6}\n')
    settings = Settings(out_dir=str(tmp_path), resume=True, checkpoint_interval=1000)
    (tmp_path / "config.json").write_text(json.dumps({"settings": settings}))
    assert list(run.check_folder(Settings(settings, checkpoint_interval=100), None)) == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "loss": 8}\n{"step": 1390, "loss": 6}\n')
    assert "checkpoints are gone" in next(run.check_folder(settings, None))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "config.json is not from a run of train.py" in next(run.check_folder(settings, None))


def test_an_optimizer_keeps_its_counters_and_follows_the_code():
    """A schedule-free optimizer counts in its groups. A group whose setting the code has changed says so."""

    class Counting(torch.optim.SGD):
        def __init__(self, weight_decay):
            weight = torch.nn.Parameter(torch.ones(3))
            weight.grad = torch.ones(3)
            super().__init__([{"params": [weight], "sum": torch.zeros(())}], 0.1, 0.9, weight_decay=weight_decay)

        def step(self):
            super().step()
            for group in self.param_groups:
                group["k"] = group.get("k", 0) + 1
                group["sum"] += torch.tensor(0.5)

    first, second, reports = Counting(0.1), Counting(0.2), []
    settings = copy.deepcopy(first.state_dict()["param_groups"])
    first.step()
    first.step()
    saved = {"optimizer": {"sgd": first.state_dict() | {"settings": settings}}}
    run.load_optimizers({"sgd": second}, saved, "ckpt-2.pt", reports.append)
    second.step()
    (group,) = second.param_groups
    assert (group["k"], group["sum"].item(), group["weight_decay"]) == (3, 1.5, 0.2)
    assert reports == ["ckpt-2.pt: weight_decay of sgd, group 0, was 0.1 and is now 0.2"]
