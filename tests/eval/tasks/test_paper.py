"""The protocol of arXiv 2507.00994, a test for each statement about fine-tuning, and what docs/paper.md declares to be
different here. NQ's documents: test_registry.py. The rest of the paper's metrics: test_metrics.py."""

import json
import random
from math import log2

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy, normalize

import checkpoint
import configurator
from eval.tasks import metrics
from eval.tasks.families import Item
from eval.tasks.readers import Pair, Question, Sentence, Text
from eval.tasks.result import build, prediction_lines
from eval.tasks.splits import Dataset, SPLIT_SEED, VALIDATION_FRACTION, hold_out
from helpers import ROOT
from model import ModelConfig, Transformer
from task_helpers import TOKENIZER, family, logits, score, settings

# --- Training ---


def test_the_settings_of_the_protocol():
    finetune, _ = configurator.read_script(ROOT / "finetune.py")
    expected = dict(max_steps=1000, epochs=1, batch_size=32, warmup_fraction=0.1, max_len=round(0.99 * 2048))
    expected |= dict(beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1, dropout=0.1, temperature=0.05)
    expected |= dict(causal=False)
    assert finetune | expected == finetune
    study, _ = configurator.read_script(ROOT / "eval/study/__main__.py")
    assert study["rates"] == (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
    assert study["finetune_seeds"] == (1, 2, 3, 4, 5)  # declared; the paper's are 0 to 4


def test_weights_stay_in_fp32_and_random_ones_are_those_that_the_run_began_with(encoder):
    """Declared; the paper's weights are in bf16. The seed of fine-tuning draws the head only."""
    state, toy, heads = checkpoint.load(encoder), Dataset("toy", "qa", [], [], [], [], {}, {}), []
    torch.manual_seed(state["settings"]["seed"])
    initial = Transformer(ModelConfig(**state["config"])).state_dict()
    for seed in (1, 2):
        _, model = build(settings(seed=seed, dtype="bfloat16"), toy, state, random_weights=True)
        assert {p.dtype for p in model.parameters()} == {torch.float32}
        assert model.encoder(torch.ones(1, 4, dtype=torch.int64), False).dtype == torch.bfloat16
        assert all(torch.equal(x, initial[name]) for name, x in model.encoder.state_dict().items())
        heads.append(next(x for x in model.head.parameters() if x.dim() == 2))
    assert not torch.equal(*heads)


def test_a_text_is_on_one_side_of_the_validation_split():
    """Declared; the paper takes 5 % of the rows."""
    assert (SPLIT_SEED, VALIDATION_FRACTION) == (42, 0.05)
    texts = [Text(f"t{i * i % 150}", i) for i in range(400)]
    train, held = hold_out("a.csv", texts, 0.2)
    assert sorted(text.label for text in train + held) == [*range(400)]
    assert not {text.key for text in train} & {text.key for text in held}
    pinned = ["t16", "t64", "t144", "t76", "t129", "t136", "t54", "t51", "t69"]  # under every version of numpy
    assert list(dict.fromkeys(text.key for text in held)) == pinned


# --- Tagging ---


def test_a_words_tag_is_the_majority_of_its_tokens_and_words_cut_off_are_o():
    """The second half is declared; the paper does not score them."""
    tc = family("tc", max_len=8, labels=["O", "B-X", "B-Y"])
    sentence = Sentence(["extraordinarily", "cat", *["horse"] * 9], ["B-X", "B-Y", *["B-X"] * 9])
    (item,) = tc.items(sentence, "test")
    assert len(item.ids) == 8
    n = (item.extra == 0).sum()
    assert n >= 3, "the word must have several tokens for this test"
    output = np.zeros((8, 3))
    output[:n, 1], output[0, 2], output[n:, 2] = 1, 2, 3  # X wins the first word by n - 1 to 1
    answers = tc.answers([output], [item], [sentence], "test")
    kept = item.extra.max() + 1
    predicted = ["B-X"] + ["B-Y"] * (kept - 1) + ["O"] * (11 - kept)
    found = tc.metrics(answers, [sentence])["entity_f1"]
    assert found.tolist() == metrics.entity_f1([predicted], [sentence.tags]).tolist()
    e = np.exp(1)
    of_x = [e / (e + 1 + np.exp(2)), *[e / (e + 2)] * (n - 1)]  # on each token of the first word
    score = [np.mean(of_x)] + [np.exp(3) / (np.exp(3) + 2)] * (kept - 1) + [0] * (11 - kept)
    (line,) = map(json.loads, prediction_lines(answers, [sentence]))
    assert line == {"id": 1, "gold": sentence.tags, "predicted": predicted, "score": pytest.approx(score, abs=1e-6)}
    tie = np.array([[0, 0, 1.0], [0, 1, 0], [0, 0, 0]])  # a word of two tokens, and eos: the lowest class
    (answer,) = tc.answers([tie], [Item([1, 2, 0], None, np.array([0, 0]))], [Sentence(["x"], ["O"])], "test")
    assert answer.predicted == ["B-X"]


# --- Question answering ---

QUESTION = Question("q", "Where is it?", "It is in Rome.", [("Rome", 9), ("in Rome", 6)])
PROMPT = TOKENIZER.encode("Question: Where is it?\nContext: ")


def test_the_question_and_eos_are_learned_as_not_in_the_answer():
    """The prompt and the context are tokenized apart."""
    qa = family("qa")
    (item,) = qa.items(QUESTION, "train")
    assert item.ids == [*PROMPT, *TOKENIZER.encode(QUESTION.context), TOKENIZER.eos_id]
    in_answer = [int(i in TOKENIZER.encode(" Rome")) for i in item.ids]
    assert item.target.tolist() == in_answer and sum(in_answer) > 0
    output = torch.randn(len(item.ids), 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(qa.loss(output, [item]), cross_entropy(output, torch.tensor(in_answer)))


def test_f1_is_of_token_positions_in_the_whole_text_and_the_first_answer():
    """An answer, which the field's metrics compare, is in the context only."""
    qa = family("qa")
    (item,) = qa.items(QUESTION, "test")
    n, odds = item.target.sum(), 20.0 * item.target - 10
    odds[[3, -1]] = 10  # a token of the question, and eos
    found = score(qa, lambda items: [logits(odds)], [QUESTION], "test")
    assert found["token_set_f1"] == pytest.approx(100 * 2 * n / (n + 2 + n))
    assert found["exact_match"] == 100
    nothing = score(qa, lambda items: [logits(-np.ones(len(item.ids)))], [QUESTION._replace(answers=[])], "test")
    assert nothing["token_set_f1"] == 100  # the floor of SQuAD v2


def test_long_contexts_are_read_in_windows_that_overlap():
    """Declared; the paper truncates them."""
    words = random.Random(0).choices("alpha beta gamma delta epsilon zeta eta theta iota kappa".split(), k=150)
    words[120] = "Zanzibar"
    context = " ".join(words)
    question = Question("q", "Where is it?", context, [("Zanzibar", context.index("Zanzibar"))])
    qa = family("qa", max_len=40)
    windows = qa.items(question, "test")
    assert len(windows) > 3 and all(len(item.ids) <= 40 for item in windows)
    ((odds, prompt, inside, *_),) = qa.merge_windows([logits(np.array(item.ids)) for item in windows], windows)
    # the odds name the token: each once, in its place
    assert odds.tolist() == [*PROMPT, *TOKENIZER.encode(context), TOKENIZER.eos_id]
    assert TOKENIZER.decode(odds[prompt:-1][inside == 1].astype(int)).strip() == "Zanzibar"
    (only,) = qa.items(question, "train")
    assert only.target.max() == 1 and len(only.ids) <= 40  # in training, the window that holds the answer

    # A token counts where it is farthest from a window's edge.
    edge, best = [], np.zeros(len(odds) - len(PROMPT) - 1)
    for item in windows:
        begin, n = item.extra[0], len(item.ids) - len(PROMPT) - 1
        distance = np.minimum(np.arange(n), np.arange(n)[::-1])
        best[begin : begin + n] = np.maximum(best[begin : begin + n], distance)
        edge.append(logits(np.r_[[0] * len(PROMPT), distance, 0]))
    ((odds, *_),) = qa.merge_windows(edge, windows)
    assert np.abs(odds[len(PROMPT) : -1] - best).max() <= 1


# --- Retrieval ---


def test_a_second_copy_of_a_document_is_no_negative():
    """Declared; in the paper it is one."""
    ir = family("ir")
    items = [item for q, d in (("a", "x"), ("b", "x"), ("c", "y")) for item in ir.items(Pair(q, d), "train")]
    output = normalize(torch.randn(6, 8, generator=torch.Generator().manual_seed(0)), dim=-1)  # as the model gives it
    scores = output[0::2] @ output[1::2].T / 0.05
    scores[0, 1] = scores[1, 0] = -torch.inf
    torch.testing.assert_close(ir.loss(output, items), cross_entropy(scores, torch.arange(3)))


@pytest.mark.parametrize("run, expected", [
    ({"a": 2, "x": 1}, 1),  # the documents that were not retrieved cost nothing
    ({"y": 2, "x": 1}, 0),
    ({"x": 20, "a": 19, **{f"y{i}": i for i in range(2, 10)}, "b": 1}, 1 / log2(3)),  # b is the eleventh
    ({"a": 3, "b": 2, "c": 1}, 1),  # whatever the order of the grades
    ({"a": 3, "zero": 2, "c": 1}, (1 + 1 / log2(4)) / (1 + 1 / log2(3))),
])  # fmt: skip
def test_ndcg_has_binary_gains_and_the_ideal_of_the_retrieved_ten(run, expected):
    grades = {"a": 1, "b": 3, "c": 2, "zero": 0, "y": -1}
    assert metrics.score(metrics.ndcg_retrieved([run], [grades])) == pytest.approx(100 * expected)
