"""The task model: predictions that do not depend on the company of other texts, and saved models."""

from pathlib import Path

import numpy as np
import pytest
import torch

import checkpoint
from data.objective import CLM, MLM
from errors import Damaged, DataError
from eval.tasks.families import Item
from eval.tasks.model import BATCH_TOKENS, TaskModel, predict
from eval.tasks.readers import Question, Sentence, Text
from eval.tasks.result import evaluate, load, origin
from eval.tasks.retriever import STUDY
from helpers import record
from model import Transformer


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("family", ["sc", "tc", "ir"])
def test_a_text_has_the_same_output_alone_and_in_company(encoder, family, causal, monkeypatch):
    torch.manual_seed(1)
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 80)
    model = TaskModel(checkpoint.load_model(encoder), family, 3, causal, 0.1, STUDY)
    rng = np.random.default_rng(0)
    items = [Item(rng.integers(1, 4000, n).tolist(), None) for n in (1, 7, 30, 64, 12, 3)]
    for item, output in zip(items, predict(model, items)):
        with torch.no_grad():
            hidden = model.encoder(torch.tensor([item.ids]), causal)[0]
            if family != "tc":
                hidden = hidden.mean(0)
            if family == "ir":
                hidden = torch.nn.functional.normalize(hidden, dim=0)
            expected = model.eval().head(hidden)
        assert output.shape == expected.shape
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-5)


def test_texts_are_not_packed_if_the_position_in_a_row_matters(saved, monkeypatch):
    """As in a model that was edited to have absolute positions."""
    assert saved("ir")[1].capacity > 0
    forward, positions = Transformer.forward, torch.linspace(0, 1, 128)[:, None]

    def edited(self, tokens, *more):
        return forward(self, tokens, *more) + positions[: tokens.shape[1]]

    monkeypatch.setattr(Transformer, "forward", edited)
    _, model = saved("ir")
    items = [Item([*range(n)], None) for n in (7, 30, 3)]
    for item, output in zip(items, predict(model, items)):
        (alone,) = predict(model, [item])
        np.testing.assert_allclose(output, alone, atol=1e-5)


def test_what_a_checkpoint_has_learned_follows_from_its_record(encoder):
    state = checkpoint.load(encoder) | {"step": 30}

    mixed = record(*({CLM(): [0], MLM(ratio, "before"): [1, 2, 3]} for ratio in (0.3, 0.1)))
    for phases, steps, ratio in (mixed, 0.5, 0.3), (record(*[{CLM(): [0]}] * 30), 30, 0):
        changed = state | {"settings": state["settings"] | dict(switch_step=20, mask_ratio=0.5), "phases": phases}
        found = origin(changed, Path("kept/clm.pt"), "", False)
        assert (found["clm_steps"], found["mask_ratio"], found["phases"]) == (steps, ratio, phases)
        assert found["name"] == "kept-clm"  # not the folder alone: another checkpoint beside it is another model


WORDS = "red fish and a blue one swim in Lake Victoria while nobody is looking at 3,000 of them".split()
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + 5 * i % 11]) for i in range(11)]


@pytest.mark.parametrize("family, example", [
    ("sc", lambda text: Text(text, "yes")),
    ("tc", lambda text: Sentence(text.split(), ["O"] * len(text.split()))),
    ("qa", lambda text: Question(text, f"{text}?", " ".join([text] * 20), [(text, 0)])),
])  # fmt: skip
def test_a_saved_model_has_the_answers_and_scores_of_the_one_in_memory(saved, tmp_path, family, example):
    examples = [example(text) for text in TEXTS]
    scores, _, answers = evaluate(*saved(family), examples, "test")
    _, task, model = load(tmp_path / "model.pt")
    found, _, others = evaluate(task, model, examples, "test")
    assert found == scores and [x[:2] for x in others] == [x[:2] for x in answers]
    assert len({str(answer.score) for answer in answers}) > 3


def test_what_finetune_did_not_save_is_refused(saved, encoder, tmp_path):
    with pytest.raises(DataError, match="is not a model that finetune.py --save_model=True kept"):
        load(encoder)
    saved("sc")
    state = checkpoint.load(tmp_path / "model.pt")
    for part in ("settings", "labels", "head", "task"):
        fine_tuned = {name: value for name, value in state["fine_tuned"].items() if name != part}
        checkpoint.save(tmp_path / "forged.pt", state | {"fine_tuned": fine_tuned})
        with pytest.raises(Damaged, match="forged.pt is damaged or not a checkpoint of this project"):
            load(tmp_path / "forged.pt")
