"""Fixtures that write data files and save fine-tuned models."""

import pytest

import checkpoint
from eval.tasks import hub_encoder
from eval.tasks.registry import Task
from eval.tasks.result import build, save_model
from eval.tasks.splits import Dataset
from task_helpers import Files, settings


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


@pytest.fixture
def saved(encoder, tmp_path):
    """saved(family) -> (the Family, its TaskModel) of a fine-tuned model, which is in tmp_path/model.pt."""

    def one(family, state=None, **more):
        cfg = settings(family=family, max_len=40, out_dir=str(tmp_path), **more)
        state = state or checkpoint.load(encoder)
        spec = Task("sc", columns=("title", "body", "end"), form="T: {} B: {} {}") if family == "sc" else Task(family)
        labels = {"sc": ["no", "yes"], "tc": ["O", "B-X"]}.get(family, [])
        dataset = Dataset("toy", family, labels, [], {}, {}, {}, {}, spec)
        task, model = build(cfg, dataset, state)
        task.threshold, task.may_be_none = -0.5, True
        save_model(cfg, dataset, task, model, {}, state | dict(optimizer={}, muon={}))
        assert not {"optimizer", "muon"} & hub_encoder.open_newest(tmp_path / "model.pt")[1].keys()
        return task, model

    return one
