"""The task families and their model: examples, losses, predictions, and what arXiv 2507.00994 and docs/paper.md say."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from task_helpers import TOKENIZER, family, logits, score, settings
from torch.nn.functional import cross_entropy, normalize

import checkpoint
import configurator
from data.objective import CLM, MLM
from errors import DataError
from eval.tasks.families import Item, nearest_documents, subsample
from eval.tasks.hub_encoder import encoder_of
from eval.tasks.model import BATCH_TOKENS, TaskModel, predict
from eval.tasks.readers import Pair, Query, Question, Sentence, Text
from eval.tasks.result import build, evaluate, load, origin, prediction_lines
from eval.tasks.retriever import STUDY
from eval.tasks.splits import SPLIT_SEED, VALIDATION_FRACTION, Dataset
from helpers import ROOT, record
from model import ModelConfig, Transformer


def lines_of(task, forward, examples, split="test"):
    """Return the lines of predictions.jsonl."""
    return [*map(json.loads, prediction_lines(task.predict(forward, examples, split), examples))]


def noise(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def asked(context, *answers, question="Where is it?"):
    """A Question whose answers are in the context."""
    return Question("q", question, context, [(answer, context.index(answer)) for answer in answers])


def test_the_settings_of_the_protocol():
    expected = dict(max_steps=1000, epochs=1, batch_size=32, warmup_fraction=0.1, max_len=round(0.99 * 2048))
    expected |= dict(beta1=0.9, beta2=0.95, eps=1e-5, weight_decay=0.1, dropout=0.1, temperature=0.05, causal=False)
    assert settings(**expected) == settings()
    study, _ = configurator.read_script(ROOT / "eval/study/__main__.py")
    assert study["rates"] == (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)
    assert study["finetune_seeds"] == (1, 2, 3, 4, 5)  # declared; the paper's are 0 to 4
    assert (SPLIT_SEED, VALIDATION_FRACTION) == (42, 0.05)


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
    state["settings"]["attention"] = "reference"  # the formula may have been edited
    assert build(settings(), toy, state, random_weights=True)[1].encoder.attention_backend == "reference"


def test_a_subsample_is_spread_evenly():
    assert subsample([*range(10)], 4) == [0, 2, 5, 7] and subsample([1, 2], 3) == [1, 2]
    queries = [Query(f"q{i}", "?", {}, "c", name) for name in "ab" for i in range(4)]
    assert subsample(queries, 2) == [queries[i] for i in (0, 2, 4, 6)]


def test_a_class_is_given_with_its_probability():
    texts = [Text("x", "good"), Text("y", "bad")]
    first, second = lines_of(family("sc", labels=["bad", "good"]), lambda _: np.array([[0, 1.0], [0, 0.5]]), texts)
    assert first == dict(id=1, gold="good", predicted="good", score=pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6))
    assert second == dict(id=2, gold="bad", predicted="good", score=pytest.approx(1 / (1 + np.exp(-0.5)), abs=1e-6))


def test_regression_learns_standardized_numbers_and_predicts_them_as_they_are():
    train = [Text("a", 100.0), Text("b", 300.0)]
    sc = family("sc", train=train)
    items = [item for example in train for item in sc.items(example, "train")]
    output = torch.tensor([[-1.0], [1.0]])  # the two numbers in units of their standard deviation, 100
    assert sc.n_outputs == 1 and sc.loss(output, items) == 0 and sc.loss(output + 2, items) == 4
    head = torch.nn.Sequential(torch.nn.Linear(1, 1))
    expected = 100 * head(output) + 200
    sc.finish(SimpleNamespace(head=head))
    torch.testing.assert_close(head(output), expected)


def test_all_tokens_of_a_word_have_its_tag_and_a_word_without_tokens_is_eos():
    words = ["Müller's", "3,141.5", "U.S.", ",", "don't", "(x)", "日本", "a--b", "#", "🙂"]
    tags = [f"B-{i}" for i in range(len(words))]
    tc = family("tc", labels=["O", *tags])
    (item,) = tc.items(Sentence(words, tags), "train")
    assert item.ids == [*TOKENIZER.encode(" " + " ".join(words)), TOKENIZER.eos_id]  # a space before each word
    assert item.target[-1] == -1 and len(item.target) == len(item.ids)
    for i, word in enumerate(words):
        assert TOKENIZER.decode(np.array(item.ids[:-1])[item.extra == i]).strip() == word
        assert set(item.target[:-1][item.extra == i]) == {1 + i}
    tc.tokenizer = SimpleNamespace(word_prefix="", encode=str.split, eos_id="eos")
    (item,) = tc.items(Sentence(["a", "\u3000", "b"], ["O", "B-3", "O"]), "train")
    assert (item.ids, item.target.tolist(), item.extra.tolist()) == (["a", "eos", "b", "eos"], [0, 4, 0, -1], [0, 1, 2])


def test_a_words_tag_is_the_majority_of_its_tokens_and_words_cut_off_are_o():
    """The second half is declared; the paper does not score them."""
    tc = family("tc", max_len=8, labels=["B-Z", "O", "B-X", "B-Y"])
    sentence = Sentence(["extraordinarily", "cat", *["horse"] * 9], ["B-X", "B-Y", *["B-X"] * 9])
    (item,) = tc.items(sentence, "test")
    n, kept = (item.extra == 0).sum(), item.extra.max() + 1
    assert len(item.ids) == 8 and n >= 3, "the word must have several tokens for this test"
    output = np.zeros((8, 4))
    output[:n, 2], output[0, 3], output[n:, 3] = 1, 2, 3  # X wins the first word by n - 1 to 1
    predicted, e = ["B-X"] + ["B-Y"] * (kept - 1) + ["O"] * (11 - kept), np.exp(1)
    of_x = [e / (e + 2 + e**2), *[e / (e + 3)] * (n - 1)]  # on each token of the first word
    probability = pytest.approx([np.mean(of_x)] + [e**3 / (e**3 + 3)] * (kept - 1) + [0] * (11 - kept), abs=1e-6)
    (line,) = lines_of(tc, lambda _: [output], [sentence])
    assert line == {"id": 1, "gold": sentence.tags, "predicted": predicted, "score": probability}
    two = next(word for word in ("Lima", "Rome", "ab", "xy", "qz") if len(TOKENIZER.encode(" " + word)) == 2)
    tie = np.array([[0, 0, 0, 1.0], [0, 0, 1, 0], [0, 0, 0, 0]])  # a word of two tokens, and eos: the lowest class
    assert lines_of(tc, lambda _: [tie], [Sentence([two], ["O"])])[0]["predicted"] == ["B-X"]


CONTEXT = "The Bengal tiger, of course, lives in Müllheim – 3,500 km away – says Ana 🙂 Lima."
QUESTION = asked("It is in Rome.", "Rome", "in Rome")
PROMPT = TOKENIZER.encode("Question: Where is it?\nContext: ")
LETTERS = "alpha beta gamma delta."


@pytest.mark.parametrize("answer", ["The", "Müllheim", "3,500 km", "Ana 🙂", "Lima", "日本"])
def test_answers_survive_the_way_to_tokens_and_back(answer):
    qa, question = family("qa"), asked("日本 is x." if answer == "日本" else CONTEXT, answer, question="What?")
    (item,) = qa.items(question, "test")
    predicted = TOKENIZER.decode([i for i, t in zip(item.ids, item.target) if t == 1]).strip()
    assert answer in predicted and len(predicted) <= len(answer) + 1  # a token may carry a comma behind it
    found = score(qa, lambda _: [logits(20.0 * item.target - 10)], [question], None)
    assert found["exact_match"] == 100 and found["token_set_f1"] == 100
    (line,) = lines_of(qa, lambda _: [logits(20.0 * item.target - 10)], [question], "new")
    best = (10 - qa.threshold) * (item.target == 1).sum()
    assert (line["id"], line["gold"], answer in line["predicted"], line["score"]) == ("q", [answer], True, best)


def test_no_answer_is_possible_only_if_training_had_such_questions():
    questions = [asked(LETTERS, "beta"), asked(LETTERS)]
    for train, right in ((questions, 50), (questions[:1], 0)):
        qa = family("qa", train=train)
        qa.thresholds = [0.0]
        found = score(qa, lambda items: [logits(-np.ones(len(item.ids))) for item in items], questions, None)
        assert found["exact_match"] == right
    assert qa.best_span(np.array([]), None, "") == ("", 0)  # without tokens, if a tokenizer drops spaces


def test_the_threshold_of_answers_is_chosen_on_validation_and_kept_for_test():
    qa, question, exact = family("qa"), asked(LETTERS, "beta gamma"), []
    (item,) = qa.items(question, "test")
    outputs = [logits(4.0 * (item.target == 1) - 5)]  # the right tokens stand out, but all are more likely outside
    for split in ("test", "validation", "test"):
        exact.append(score(qa, lambda _: outputs, [question], split)["exact_match"])
    assert exact == [0, 100, 100]
    assert qa.threshold == -1.5  # the highest of those that are right, from -5 to -1 without these two


def test_the_question_and_eos_are_learned_as_not_in_the_answer_and_count_in_the_f1_of_positions():
    qa = family("qa")
    (item,) = qa.items(QUESTION, "train")
    assert item.ids == [*PROMPT, *TOKENIZER.encode(QUESTION.context), TOKENIZER.eos_id]
    in_answer = [int(i in TOKENIZER.encode(" Rome")) for i in item.ids]
    n = sum(in_answer)
    assert item.target.tolist() == in_answer and n > 0
    output = noise(len(item.ids), 2)
    torch.testing.assert_close(qa.loss(output, [item]), cross_entropy(output, torch.tensor(in_answer)))
    odds = 20.0 * item.target - 10
    odds[[3, -1]] = 10  # a token of the question, and eos
    found = score(qa, lambda _: [logits(odds)], [QUESTION], "test")
    assert found["token_set_f1"] == pytest.approx(100 * 2 * n / (n + 2 + n)) and found["exact_match"] == 100
    nothing = score(qa, lambda items: [logits(-np.ones(len(item.ids)))], [asked(QUESTION.context)], "test")
    assert nothing["token_set_f1"] == 100  # the floor of SQuAD v2


def test_long_contexts_are_read_in_windows_that_overlap():
    """Declared; the paper truncates them."""
    words = random.Random(0).choices("alpha beta gamma delta epsilon zeta eta theta iota kappa".split(), k=150)
    words[120] = "Zanzibar"
    context = " ".join(words)
    qa, question = family("qa", max_len=40), asked(context, "Zanzibar")
    windows = qa.items(question, "test")
    starts = [item.extra[0] for item in windows]
    assert {*np.diff(starts)} == {(40 - len(PROMPT) - 1) // 2} and all(len(item.ids) <= 40 for item in windows)
    outputs, best = [], np.zeros(len(TOKENIZER.encode(context)))
    for begin, item in zip(starts, windows):  # the odds name the token, and how far it is from the window's edge
        n = len(item.ids) - len(PROMPT) - 1
        distance = np.minimum(np.arange(n), np.arange(n)[::-1])
        best[begin : begin + n] = np.maximum(best[begin : begin + n], distance)
        outputs.append(logits(np.array(item.ids) + np.r_[[0] * len(PROMPT), distance, 0] / 100))
    ((odds, prompt, inside, *_),) = qa.merge_windows(outputs, windows)
    ids = odds.astype(int)  # each once, in its place, from the window where it is farthest from the edge
    assert ids.tolist() == [*PROMPT, *TOKENIZER.encode(context), TOKENIZER.eos_id]
    assert np.abs(100 * (odds - ids)[prompt:-1] - best).max() < 1.1
    assert TOKENIZER.decode(ids[prompt:-1][inside == 1]).strip() == "Zanzibar"
    (only,) = qa.items(question, "train")
    assert only.target.max() == 1 and len(only.ids) <= 40  # in training, the window that holds the answer


def test_the_nearest_documents_do_not_depend_on_the_memory():
    queries, documents = noise(305, 8).numpy()[:5], noise(305, 8).numpy()[5:]
    best = np.argsort(-(queries @ documents.T), axis=1)[:, :101].tolist()
    for memory in (1, 700, 10**6):
        found = nearest_documents(queries, documents, range(300), slice(None), memory=memory)
        assert [list(run) for run in found] == best


def test_a_text_without_tokens_can_be_embedded():
    ir = family("ir")
    ir.protocol = STUDY._replace(own=True)
    ir.engine = SimpleNamespace(encode=lambda text: SimpleNamespace(ids=[]), enable_truncation=abs)
    assert ir.item("", "").ids == [TOKENIZER.eos_id]


def test_retrieval_is_scored_on_the_whole_corpus_and_on_the_judged_documents():
    corpora = {"a": {"d1": "red", "d2": "green", "d3": "blue", "d4": "red too"}}
    corpora["b"] = {"d2": "green", "d1": "red", "d3": "blue"}
    queries = [Query("q1", "red", {"d1": 1}, "a"), Query("q2", "green", {"d2": 1, "d1": 0}, "a")]
    other = [query._replace(corpus="b", set="s") for query in queries]
    judged = {"a": {"d1", "d2"}, "b": {"d1", "d2"}}
    ir, calls = family("ir", validation=queries, test=queries + other, corpora=corpora, judged=judged), []
    vectors = {"Query: red": [1, 0.02, 0], "Query: green": [0, 1, 0], "Document: red": [1, 0, 0]}
    vectors |= {"Document: red too": [1, 0.01, 0], "Document: green": [0, 1, 0], "Document: blue": [0, 0, 1]}

    def forward(items):
        calls.append(len(items))
        return [np.array(vectors[TOKENIZER.decode(item.ids[:-1])], "f") for item in items]

    found = score(ir, forward, queries, "validation")
    assert found["mrr@10"] == 75 and found["ndcg@10_judged"] == 100  # d4, which nobody judged, is before d1 for q1
    lines = lines_of(ir, forward, queries + other)
    assert calls == [4, 2, 2, 3, 2]  # each corpus is embedded once for all splits
    expected = [("q1", {"d1": 1}, ["d4", "d1"]), ("q2", {"d2": 1, "d1": 0}, ["d2", "d4"])]
    assert [(line["id"], line["gold"], line["predicted"][:2]) for line in lines[:2]] == expected
    assert all(line["score"] == sorted(line["score"], reverse=True) for line in lines) and lines[2]["id"] == "s/q1"
    calls.clear()
    assert score(ir, forward, queries, None) == score(ir, forward, queries, None)
    assert calls == [2, 2, 2, 2]  # in the validations during training, the judged documents, each time
    ir.dataset.main["field"] = []
    assert [*score(ir, forward, queries + other, "test")] == ["ndcg@10_judged", "s/ndcg@10_judged"]


def test_a_second_copy_of_a_document_is_no_negative():
    """Declared; in the paper it is one."""
    ir = family("ir")
    items = [item for q, d in (("a", "x"), ("b", "x"), ("c", "y")) for item in ir.items(Pair(q, d), "train")]
    output = normalize(noise(6, 8), dim=-1)  # as the model gives it
    scores = output[0::2] @ output[1::2].T / 0.05
    scores[0, 1] = scores[1, 0] = -torch.inf
    torch.testing.assert_close(ir.loss(output, items), cross_entropy(scores, torch.arange(3)))


@pytest.mark.parametrize("name, fits, example", [  # of n words of one token, of which so many fit into 64 tokens
    ("sc", 63, lambda n: Text(" the" * n, "a")),
    ("tc", 63, lambda n: Sentence(["the"] * n, ["O"] * n)),
    ("qa", 63 - len(PROMPT), lambda n: asked(" the" * n)),
])  # fmt: skip
def test_what_is_longer_than_the_length_is_counted_in_each_split(name, fits, example):
    short, long = example(fits), example(fits + 1)
    task = family(name, train=[short, long], validation=[long, short, long], test=[short], labels=["a", "O"])
    assert [len(item.ids) for item in task.items(short, "test")] == [64]
    task.count_too_long()
    counts = {rule.partition(":")[0]: n for rule, n in task.dataset.counts.items()}
    assert counts == {"train": 1, "validation": 2, "test": 0} and task.max_len == 64


def test_a_question_is_cut_only_if_the_context_does_not_fit_beside_it():
    task, question = family("qa"), "the" + " the" * (54 - len(PROMPT))
    for n, prompt, windows in (0, 50, 1), (1, 50, 1), (13, 50, 1), (14, 49, 1), (31, 32, 1), (32, 32, 2):
        items = task.items(asked(" the" * n, question=question), "test")
        assert (items[0].extra[1], len(items)) == (prompt, windows) and len(items[0].ids) == prompt + min(n, 31) + 1


@pytest.mark.parametrize("prompts", [("Query: ", "Document: "), ("", "")])
def test_queries_and_documents_that_are_longer_than_the_length_are_counted(prompts):
    rooms = [63 - len(TOKENIZER.encode(prompt.strip())) for prompt in prompts]
    fit, long = (["the" + " the" * (room + more - 1) for room in rooms] for more in (0, 1))
    pairs = [Pair(*fit), Pair(long[0], fit[1]), Pair(*long)]
    queries = [Query("q", text, {"d": 1}, "a/c/x") for text in (fit[0], long[0], long[0])]
    corpora = {"a/c/x": dict(enumerate([*long, "a"]))}
    ir = family("ir", train=pairs, validation=queries, test=queries[:1], corpora=corpora)
    ir.protocol = STUDY._replace(query=prompts[0], document=prompts[1])
    ir.count_too_long()
    expected = {"train": 3, "validation": 2, "test": 0, "corpus of c": 2}
    assert ir.dataset.counts == {f"{part}: texts cut to 64 tokens": n for part, n in expected.items()}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["sc", "tc", "ir"])
@torch.no_grad()
def test_a_text_has_the_same_output_alone_and_in_company(encoder, name, causal, monkeypatch):
    torch.manual_seed(1)
    monkeypatch.setitem(BATCH_TOKENS, "cpu", 80)
    model = TaskModel(checkpoint.load_model(encoder), name, 3, causal, 0.1, STUDY)
    items = [Item(torch.randint(1, 4000, (n,)).tolist(), None) for n in (1, 7, 30, 64, 12, 3)]
    for item, output in zip(items, predict(model, items)):
        hidden = model.encoder(torch.tensor([item.ids]), causal)[0]
        if name != "tc":
            hidden = hidden.mean(0)
        if name == "ir":
            hidden = normalize(hidden, dim=0)
        torch.testing.assert_close(torch.from_numpy(output), model.eval().head(hidden), rtol=1e-4, atol=1e-5)
    model.encoder.norm.weight[0] = torch.nan
    with pytest.raises(DataError, match="not finite"):
        predict(model, items)


def test_texts_are_not_packed_if_the_position_in_a_row_matters(encoder, saved, monkeypatch):
    """As in a model that was edited to have absolute positions, which begin as 0. One that sees padding is refused."""
    state, forward, positions = checkpoint.load(encoder), Transformer.forward, torch.linspace(0, 1, 128)[:, None]
    state["model"] = state["model"] | {"norm.weight": torch.full((64,), 2.0)}
    shift = lambda self, T: (self.norm.weight[0] - 1) * positions[:T]  # noqa: E731
    monkeypatch.setattr(Transformer, "forward", lambda *args: forward(*args) + shift(args[0], args[1].shape[1]))
    assert encoder_of(state, random_weights=True).one_text_per_row
    _, model = saved("ir", state)
    items = [Item([*range(n)], None) for n in (7, 30, 3)]
    for item, output in zip(items, predict(model, items)):
        (alone,) = predict(model, [item])
        np.testing.assert_allclose(output, alone, atol=1e-5)
    monkeypatch.setattr(Transformer, "forward", lambda *args: forward(*args).roll(-1, 1))
    with pytest.raises(DataError, match="depend on what follows it in a row"):
        encoder_of(state)


def test_what_a_checkpoint_has_learned_follows_from_its_record(encoder):
    phases = record(*({CLM(): [0], MLM(ratio, "before"): [1, 2, 3]} for ratio in (0.3, 0.1)))
    state = checkpoint.load(encoder) | {"phases": phases}  # its settings say something else
    found = origin(state, Path("kept/clm.pt"), "", False)
    assert (found["clm_steps"], found["mask_ratio"], found["phases"]) == (0.5, 0.3, phases)
    assert found["name"] == "kept-clm"  # not the folder alone: another checkpoint beside it is another model


TEXTS = [" ".join(CONTEXT.split()[i % 7 : i % 7 + 1 + 5 * i % 11]) for i in range(11)]


@pytest.mark.parametrize("name, example", [
    ("sc", lambda text: Text(text, "yes")),
    ("tc", lambda text: Sentence(text.split(), ["O"] * len(text.split()))),
    ("qa", lambda text: Question(text, f"{text}?", " ".join([text] * 20), [(text, 0)])),
])  # fmt: skip
def test_a_saved_model_has_the_answers_and_scores_of_the_one_in_memory(saved, tmp_path, name, example):
    examples = [example(text) for text in TEXTS]
    scores, _, answers = evaluate(*saved(name), examples, "test")
    _, task, model = load(tmp_path / "model.pt")
    found, _, others = evaluate(task, model, examples, "test")
    assert found == scores and [x[:2] for x in others] == [x[:2] for x in answers]
    assert len({str(answer.score) for answer in answers}) > 3
