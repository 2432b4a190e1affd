"""finetune.py and the four task families: batches without padding, heads, losses, what is scored and what is written."""

import json
import random

import numpy as np
import pytest
import torch

import checkpoint
import finetune
from data.tokenizer import Tokenizer
from eval.tasks import metrics
from eval.tasks.families import FAMILIES, Item, at_most, top
from eval.tasks import Dataset, Pair, Question, Retrieval, Sentence, Text
from model import Transformer

TOKENIZER = Tokenizer.load("embedded")
WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()
COLOURS, ANIMALS = "red green blue black white".split(), "cat dog horse mouse bird".split()


def family(name, max_len=64, **parts):
    parts = dict(labels=[], train=[], validation=[], test=[]) | parts
    return FAMILIES[name](Dataset("toy", name, counts={}, main={}, **parts), TOKENIZER, max_len)


# ----------------------------------------------------------------------------
# Batches


@pytest.mark.parametrize("capacity", [1, 40, 64, 300])
def test_packed_rows_hold_every_text_once(capacity):
    rng = np.random.default_rng(capacity)
    texts = [rng.integers(1, 4000, n).tolist() for n in rng.integers(1, 60, 50)]
    batch = finetune.packed(texts, capacity)
    tokens, start, end, at, lengths = (batch[name].numpy() for name in ("tokens", "doc_start", "doc_end", "at", "lengths"))
    assert tokens.shape[1] <= max(capacity, max(map(len, texts)))
    again = np.split(tokens.reshape(-1)[at], np.cumsum(lengths)[:-1])
    assert [list(text) for text in again] == texts
    assert len(set(at)) == sum(map(len, texts)) == (end > start).sum()  # the rest is padding
    row, column = np.divmod(at, tokens.shape[1])
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    assert (start[row, column] == column[first]).all()
    assert (end[row, column] - start[row, column] == np.repeat(lengths, lengths)).all()


def test_full_rows_have_no_padding():
    batch = finetune.packed([[1] * n for n in (10, 54, 32, 20, 12, 64)], 64)
    assert batch["tokens"].shape == (3, 64)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name, pooling", [("sc", "mean"), ("sc", "last"), ("tc", "mean"), ("ir", "mean")])
def test_a_text_has_the_same_output_alone_and_in_company(encoder, name, pooling, causal):
    torch.manual_seed(1)
    model = finetune.TaskModel(Transformer.from_pretrained(encoder), name, 3, causal, pooling, 0.1)
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 4000, n).tolist() for n in (1, 7, 30, 64, 12, 3)]
    items = [Item(ids, None) for ids in texts]
    together = finetune.outputs(model, items, 64)
    for item, output in zip(items, together):
        hidden = model.encoder(torch.tensor([item.ids]), causal)[0].detach()
        if name != "tc":
            hidden = hidden.mean(0) if pooling == "mean" else hidden[-1]
        with torch.no_grad():
            expected = model.eval().head(hidden)
        assert output.shape == expected.shape
        torch.testing.assert_close(torch.from_numpy(output), expected, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------------------------
# The families


HARD = [["Müller's", "3,141.5", "U.S.", ",", "don't", "(x)", "日本", "a--b", "#", "🙂"], ["O"], ["12", "34", "."]]


@pytest.mark.parametrize("words", HARD)
def test_tags_go_to_all_tokens_of_their_word(words):
    tags = [f"B-{i}" for i in range(len(words))]
    (item,) = family("tc", labels=["O", *tags]).items(Sentence(words, tags), "train")
    assert item.ids == [*TOKENIZER.encode(" ".join(words)), TOKENIZER.eos_id]  # words joined by spaces, and nothing else
    assert item.target[-1] == -1 and len(item.target) == len(item.ids)
    for i, word in enumerate(words):
        ids = [token for token, word_of in zip(item.ids, item.about) if word_of == i]
        assert TOKENIZER.decode(ids).strip() == word
        assert set(item.target[:-1][item.about == i]) == {1 + i}


def test_a_words_tag_is_the_majority_of_its_tokens_and_words_cut_off_are_o():
    tc = family("tc", max_len=8, labels=["O", "B-X", "B-Y"])
    sentence = Sentence(["extraordinarily", "cat", *["horse"] * 9], ["B-X", "B-Y", *["B-X"] * 9])
    (item,) = tc.items(sentence, "test")
    assert len(item.ids) == 8 and tc.counts == {"test: sentences cut at 8 tokens": 1}
    n = (item.about == 0).sum()
    assert n >= 3, "the word must have several tokens for this test"
    logits = np.zeros((8, 3))
    logits[:n, 1], logits[0, 2], logits[n:, 2] = 1, 2, 3  # X wins the first word by n - 1 to 1
    found = tc.metrics([logits], [item], [sentence])
    kept = item.about.max() + 1
    predicted = [["B-X"] + ["B-Y"] * (kept - 1) + ["O"] * (11 - kept)]
    assert found["entity_f1"].tolist() == metrics.entity_f1(predicted, [sentence.tags]).tolist()


def test_a_label_never_seen_in_training_is_wrong():
    sc = family("sc", labels=["no", "yes"])
    examples = [Text("a", "yes"), Text("b", "perhaps")]
    items = [item for x in examples for item in sc.items(x, "test")]
    assert metrics.score(sc.metrics([np.array([0.0, 1.0])] * 2, items, examples)["accuracy"]) == 50


CONTEXTS = ["The Bengal tiger, of course, lives in Müllheim – 3,500 km away – says Ana 🙂 Lima.", "One.", "日本 is x."]


@pytest.mark.parametrize("context, answer", [(CONTEXTS[0], a) for a in ("The", "Bengal tiger", "Müllheim", "3,500 km", "Ana 🙂", "Lima")]
                         + [(CONTEXTS[1], "One"), (CONTEXTS[2], "日本")])  # fmt: skip
def test_answers_survive_the_way_to_tokens_and_back(context, answer):
    qa = family("qa")
    question = Question("1", "What?", context, [(answer, context.index(answer))])
    (item,) = qa.items(question, "test")
    made = np.stack([-10.0 * item.target, 10.0 * item.target], -1)
    found = qa.score(lambda items: [made], [question], None)
    predicted = b"".join(TOKENIZER.token_bytes[i] for i, t in zip(item.ids, item.target) if t == 1).decode().strip()
    assert answer in predicted and len(predicted) <= len(answer) + 1  # a token may carry a comma behind it
    assert metrics.score(found["exact_match"]) == 100 and metrics.score(found["token_set_f1"]) == 100


def test_long_contexts_are_read_in_windows_that_overlap():
    words = [random.Random(0).choice(WORDS) for _ in range(150)]
    words[120] = "Zanzibar"
    context = " ".join(words)
    question = Question("q", "Where is it, and where was it before?", context, [("Zanzibar", context.index("Zanzibar"))])
    qa = family("qa", max_len=50)
    windows = qa.items(question, "test")
    assert len(windows) > 3 and all(len(item.ids) <= 50 for item in windows)
    assert qa.counts == {"test: contexts longer than a window": 1}
    made = [np.stack([0 * item.target, np.array(item.ids) * 1.0], -1) for item in windows]  # the odds name the token
    ((tokens, odds, inside),) = qa.contexts(made, windows)
    assert tokens == TOKENIZER.encode(" " + context) == odds.tolist()  # each token once, its odds in its place
    assert TOKENIZER.decode([t for t, i in zip(tokens, inside) if i]).strip() == "Zanzibar"
    (only,) = qa.items(question, "train")
    assert only.target.max() == 1 and len(only.ids) <= 50  # in training the window that holds the answer

    # A token counts where it is farthest from a window's edge.
    n = [len(item.target) - item.about[0] - 1 for item in windows]
    edge = [np.minimum(np.arange(m), np.arange(m)[::-1]) for m in n]
    made = [np.stack([np.zeros(len(item.ids)), np.r_[[0] * item.about[0], e, 0]], -1) for item, e in zip(windows, edge)]
    ((_, odds, _),) = qa.contexts(made, windows)
    best = np.zeros(len(odds))
    for item, e in zip(windows, edge):
        here = slice(item.about[1], item.about[1] + len(e))
        best[here] = np.maximum(best[here], e)
    assert np.abs(odds - best).max() <= 1


def test_no_answer_is_possible_only_where_training_had_such_questions():
    context = "One two three."
    asked = [Question("1", "What?", context, [("two", 4)]), Question("2", "Why?", context, [])]
    for train, right in ((asked, 50), (asked[:1], 0)):  # v2: nothing is right for the second; v1: something must be said
        qa = family("qa", train=train)
        qa.offsets = [0.0]
        found = qa.score(
            lambda items: [np.stack([np.ones(len(i.ids)), np.zeros(len(i.ids))], -1) for i in items], asked, None
        )
        assert metrics.score(found["exact_match"]) == right


def test_the_offset_of_answers_is_chosen_on_validation_and_kept_for_test():
    context = "alpha beta gamma delta."
    question = Question("1", "What?", context, [("beta gamma", 6)])
    qa = family("qa")

    def predict(items):  # the right tokens stand out, but no token is likelier in than out
        return [np.stack([np.full(len(i.ids), 5.0), 4.0 * (i.target == 1)], -1) for i in items]

    assert metrics.score(qa.score(predict, [question], "test")["exact_match"]) == 0
    assert metrics.score(qa.score(predict, [question], "validation")["exact_match"]) == 100
    assert metrics.score(qa.score(predict, [question], "test")["exact_match"]) == 100


def test_a_second_copy_of_a_document_is_no_negative():
    ir = family("ir", validation={}, test={})
    items = [item for q, d in (("a", "x"), ("b", "x"), ("c", "y")) for item in ir.items(Pair(q, d), "train")]
    output = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    unit = torch.nn.functional.normalize(output, dim=-1)
    s = (unit[0::2] @ unit[1::2].T / 0.05).exp()
    expected = -(s[0, 0] / (s[0, 0] + s[0, 2])).log() - (s[1, 1] / (s[1, 1] + s[1, 2])).log() - (s[2, 2] / s[2].sum()).log()
    torch.testing.assert_close(ir.loss(output, items), expected / 3)


def test_top_finds_the_nearest_whatever_the_chunk():
    rng = np.random.default_rng(0)
    queries, documents = rng.normal(size=(5, 8)).astype("f"), rng.normal(size=(300, 8)).astype("f")
    unit = documents / np.linalg.norm(documents, axis=1, keepdims=True)
    best = np.argsort(-(queries @ unit.T), axis=1)[:, :10]
    for chunk in (7, 64, 1000):
        found = top(queries, documents, list("abcde"), list(range(300)), k=10, chunk=chunk)
        assert [list(found[q]) for q in "abcde"] == best.tolist()


def test_retrieval_is_scored_on_the_whole_corpus_and_on_the_judged_documents():
    corpus = {"d1": "red", "d2": "green", "d3": "blue", "d4": "red too"}
    sets = {"": Retrieval({"q1": "red", "q2": "green"}, corpus, {"q1": {"d1": 1}, "q2": {"d2": 1, "d1": 0}})}
    ir, calls = family("ir", validation=sets, test=sets), []
    vectors = {"red": [1, 0, 0], "red too": [1, 0.01, 0], "green": [0, 1, 0], "blue": [0, 0, 1]}

    def predict(items):
        texts = [TOKENIZER.decode(item.ids[:-1]).partition(": ")[2] for item in items]
        calls.append(len(texts))
        return [np.array([1, 0.02, 0] if text == "red" and len(texts) == 2 else vectors[text], "f") for text in texts]

    found = {name: metrics.score(x) for name, x in ir.score(predict, sets, "validation").items()}
    assert found["mrr@10"] == 75  # d4 comes before d1 for q1
    assert found["ndcg@10_judged"] == 100  # but nobody judged d4
    ir.score(predict, sets, "test")
    assert calls == [4, 2, 2]  # the corpus once for both splits
    other = {"": sets[""]._replace(corpus={"d2": "green", "d1": "red", "d3": "blue"})}
    ir.score(predict, other, "test")
    assert calls[3:] == [3, 2]  # another one anew
    small = at_most(sets, 2, judged_only=True)
    ir.score(predict, small, None)
    ir.score(predict, small, None)
    assert calls[5:] == [2, 2, 2, 2]  # and each time in the validations during training
    ir.full_corpus = False
    assert [*ir.score(predict, sets, "test")] == ["ndcg@10_judged"]
    small = at_most(sets, 1, judged_only=True)[""]
    assert list(small.qrels) == ["q1"] and list(small.corpus) == ["d1"]
    assert at_most(sets, 1)[""].corpus is sets[""].corpus  # so that its vectors are kept
    assert at_most([*range(10)], 4) == [0, 2, 5, 7] and at_most([1, 2], 3) == [1, 2]


# ----------------------------------------------------------------------------
# Whole runs, on made-up tasks that a tiny model with random weights can learn


def write_sc(folder, rng, n, name):
    rows = ((" ".join(rng.choices(WORDS, k=6) + [c]), str(c in COLOURS)) for c in rng.choices(COLOURS + ANIMALS, k=n))
    (folder / name).write_text("text,y\n" + "".join(f"{text},{label}\n" for text, label in rows))


def write_tc(folder, rng, n, name):
    tag = dict.fromkeys(COLOURS, "B-COL") | dict.fromkeys(ANIMALS, "B-ANI")
    with open(folder / name, "w") as f:
        for _ in range(n):
            for word in rng.choices(WORDS * 2 + COLOURS + ANIMALS, k=8):
                f.write(f"{word} {tag.get(word, 'O')}\n")
            f.write("\n")


def write_qa(folder, rng, n, name):
    paragraphs = []
    for i in range(n):
        words = rng.choices(WORDS, k=8)
        words[rng.randrange(8)] = answer = rng.choice(COLOURS)
        context = " ".join(words)
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        paragraphs.append({"context": context, "qas": [{"id": f"{i}", "question": "Which colour?", "answers": answers}]})
    (folder / name).write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))


def write_ir(folder, rng, n, name):
    """A BEIR folder: the query names two words of its document."""
    (folder / name / "qrels").mkdir(parents=True)
    documents = [rng.sample(WORDS + COLOURS + ANIMALS, 5) for _ in range(n)]
    rows = [{"_id": f"d{i}", "title": "", "text": " ".join(words)} for i, words in enumerate(documents)]
    (folder / name / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rows = [{"_id": f"q{i}", "text": " ".join(words[:3])} for i, words in enumerate(documents)]
    (folder / name / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for split, part in (("train", range(n - 60)), ("test", range(n - 60, n))):
        lines = [f"q{i}\td{i}\t1\n" for i in part]
        (folder / name / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(0)
    for write, name in ((write_sc, "{}.csv"), (write_tc, "{}.conll"), (write_qa, "{}.json")):
        write(folder, rng, 700, name.format("train"))
        write(folder, rng, 120, name.format("test"))
    write_ir(folder, rng, 500, "beir")
    return folder


def words(data, name):
    ending = dict(sc="csv", tc="conll", qa="json").get(name)
    files = [f"--train={data}/train.{ending}", f"--test={data}/test.{ending}"] if ending else [f"--corpus={data}/beir"]
    files += ["--columns=text", "--label=y", "--form={}"] if name == "sc" else []
    return [f"--family={name}", *files, "--dtype=float32", "--epochs=20", "--lr=3e-3", "--batch_size=16"]


@pytest.mark.parametrize("name, metric, steps, at_least", [("sc", "accuracy", 100, 90), ("tc", "entity_f1", 150, 80),
                                                           ("qa", "f1", 200, 70), ("ir", "mrr@10", 150, 30)])  # fmt: skip
def test_each_family_learns_and_repeats_itself(run, encoder, data, tmp_path, name, metric, steps, at_least):
    args = [*words(data, name), f"--init_from={encoder}", f"--max_steps={steps}"]
    code, text = run([*args, f"--out_dir={tmp_path}/a", "--save_model=True"], "finetune.py")
    assert code == 0, text
    result = json.loads((tmp_path / "a/result.json").read_text())
    assert result["metrics"]["test"][metric] > at_least, text
    assert (result["family"], result["steps"], result["examples"]["test"]) == (name, steps, 60 if name == "ir" else 120)
    assert result["checkpoint"] | {"name": "tiny-650", "step": 650, "clm_steps": 200, "seed": 1} == result["checkpoint"]
    arrays = np.load(tmp_path / "a/instances.npz")
    for key, value in result["metrics"]["test"].items():
        assert metrics.score(arrays[key]) == pytest.approx(value, abs=1e-4)
    for baseline, scores in result["baselines"].items():
        assert set(scores) <= set(result["metrics"]["test"]) and baseline in text

    # The saved model scores the same; and a repeat writes the same bytes.
    code, text = run([*words(data, name), f"--init_from={tmp_path}/a/model.pt", "--test_only=True", f"--out_dir={tmp_path}/b"],
                     "finetune.py")  # fmt: skip
    assert code == 0, text
    assert json.loads((tmp_path / "b/result.json").read_text())["metrics"] == result["metrics"]
    if name == "sc":
        assert run([*args, f"--out_dir={tmp_path}/c", "--save_model=True"], "finetune.py")[0] == 0
        assert (tmp_path / "c/result.json").read_bytes() == (tmp_path / "a/result.json").read_bytes()


@pytest.mark.parametrize("name", ["ir", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sc", "tc", "qa"))])
def test_the_embedded_tasks_run_to_their_end(run, encoder, tmp_path, name):
    """In retrieval the corpus of validation is not that of test."""
    args = [f"--task=embedded-{name}", f"--init_from={encoder}", "--max_steps=2", f"--out_dir={tmp_path}/out"]
    code, text = run([*args, "--dtype=float32", "--eval_examples=20"], "finetune.py")
    assert code == 0, text
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert min(result["examples"].values()) > 100 and set(result["main"]["field"]) <= set(result["metrics"]["test"])


def test_random_labels_stay_at_chance(run, encoder, data, tmp_path):
    rng = random.Random(1)
    for name in ("train.csv", "test.csv"):
        rows = [line.split(",") for line in (data / name).read_text().splitlines()]
        mixed = [f"{text},{label if label == 'y' else rng.random() < 0.5}" for text, label in rows]
        (tmp_path / name).write_text("\n".join(mixed))
    code, text = run([*words(tmp_path, "sc"), f"--init_from={encoder}", "--max_steps=150", f"--out_dir={tmp_path}/out"],
                     "finetune.py")  # fmt: skip
    result = json.loads((tmp_path / "out/result.json").read_text())
    for split, n in (("validation", 35), ("test", 120)):
        assert abs(result["metrics"][split]["accuracy"] - 50) < 4 * 50 / n**0.5, text


def test_a_linear_probe_leaves_the_encoder_as_it_was(run, encoder, data, tmp_path):
    args = [*words(data, "sc"), f"--init_from={encoder}", "--freeze=True", "--save_model=True", "--max_steps=10"]
    code, text = run([*args, f"--out_dir={tmp_path}/out"], "finetune.py")
    assert code == 0, text
    before, after = checkpoint.load(encoder)["model"], checkpoint.load(tmp_path / "out/model.pt")
    assert all(torch.equal(before[name], after["model"][name]) for name in before)
    assert after["fine_tuned"]["head"]["0.bias"].abs().max() > 0


def test_patience_stops_and_returns_to_the_best(run, encoder, data, tmp_path):
    args = [*words(data, "sc"), f"--init_from={encoder}", "--eval_interval=5", "--patience=2", "--lr=3e-2"]
    code, text = run([*args, f"--out_dir={tmp_path}/out"], "finetune.py")
    assert code == 0, text
    result = json.loads((tmp_path / "out/result.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "out/metrics.jsonl").read_text().splitlines()]
    best = max(lines, key=lambda line: line["accuracy"])
    assert result["steps"] == lines[-1]["step"] == result["best_step"] + 10 < 800
    assert (result["best_step"], result["metrics"]["validation"]["accuracy"]) == (best["step"], best["accuracy"])


def test_what_the_settings_change(run, encoder, data, tmp_path):
    scores = {}
    for i, more in enumerate(([], ["--causal=True"], ["--pooling=last"], ["--random_weights=True"], ["--seed=2"])):
        code, text = run([*words(data, "sc"), f"--init_from={encoder}", "--max_steps=3", f"--out_dir={tmp_path}/{i}", *more],
                         "finetune.py")  # fmt: skip
        assert code == 0, text
        log = json.loads((tmp_path / f"{i}/metrics.jsonl").read_text().splitlines()[-1])
        scores[log["loss"]] = more
        assert json.loads((tmp_path / f"{i}/result.json").read_text())["checkpoint"]["untrained"] == (i == 3)
    assert len(scores) == 5, scores


WRONG = {
    "no task": ([], "give a task by name"),
    "both": (["--task=sst2", "--family=sc"], "give a task by name"),
    "unknown task": (["--task=sst3"], "sst3"),
    "family": (["--family=xx"], "family=xx: must be one of sc, tc, qa, ir"),
    "lr": (["--family=sc", "--lr=0"], "lr=0.0: must be above 0"),
    "no checkpoint": (["--family=sc", "--init_from=nowhere"], "neither a checkpoint nor a folder with one"),
    "no file": (["--family=sc", "--train=no.csv", "--test=no.csv"], "no.csv"),
    "not fine-tuned": (["--test_only=True", "SC"], "is not a model fine-tuned for sc"),
    "freeze": (["--freeze=True", "IR"], "no head of its own"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_refused_before_any_work(run, encoder, data, tmp_path, case):
    args, message = WRONG[case]
    args = [part for arg in args for part in (words(data, arg.lower()) if arg in ("SC", "IR") else [arg])]
    code, text = run([f"--init_from={encoder}", f"--out_dir={tmp_path}/out", *args], "finetune.py")
    assert code not in (0, -9) and message in text and "Traceback" not in text, text
    assert not (tmp_path / "out").exists()


def test_a_result_is_never_overwritten_and_a_fine_tuned_model_not_fine_tuned_again(run, encoder, data, tmp_path):
    args = [*words(data, "sc"), "--max_steps=1", "--save_model=True", f"--out_dir={tmp_path}/out"]
    assert run([*args, f"--init_from={encoder}"], "finetune.py")[0] == 0
    code, text = run([*args, f"--init_from={encoder}"], "finetune.py")
    assert code == 2 and "already holds a result" in text
    code, text = run([*args[:-1], f"--init_from={tmp_path}/out/model.pt", f"--out_dir={tmp_path}/other"], "finetune.py")
    assert code == 1 and "fine-tuned already" in text


def test_labels_that_a_saved_model_does_not_know_are_refused(run, encoder, data, tmp_path):
    assert run([*words(data, "sc"), "--max_steps=1", "--save_model=True", f"--init_from={encoder}", f"--out_dir={tmp_path}/a"],
               "finetune.py")[0] == 0  # fmt: skip
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text((data / name).read_text().replace("True", "yes").replace("False", "no"))
    code, text = run([*words(tmp_path, "sc"), f"--init_from={tmp_path}/a/model.pt", "--test_only=True",
                      f"--out_dir={tmp_path}/b"], "finetune.py")  # fmt: skip
    assert code == 1 and "does not know the labels no, yes, but False, True" in text and not (tmp_path / "b").exists()


def test_the_recipe_of_a_checkpoint_is_all_that_was_learned_from_but_the_seed(encoder):
    state = dict(checkpoint.load(encoder))

    def recipe(data="f00d", **changed):
        return finetune.origin(state | {"settings": state["settings"] | changed, "data": data}, encoder)["recipe"]

    same = [
        recipe(),
        recipe(seed=5),
        recipe(out_dir="x"),
        recipe(device="cpu"),
        recipe(branch_from="out/seed-5/ckpt-200.pt"),
    ]
    same += [
        recipe(switch_step=0),
        recipe(max_steps=900),
        recipe(mask_ratio=0.2),
        recipe(lr=1e-3),
    ]  # facts of their own, which figures vary
    other = [recipe(data="beef"), recipe(beta2=0.9), recipe(window_split="document"), recipe(decay_steps=100)]
    assert len(set(same)) == 1 and len({same[0], *other}) == 5


def test_a_vocabulary_larger_than_the_model_is_refused(run, encoder, data, tmp_path):
    state = dict(checkpoint.load(encoder))
    state["config"] = state["config"] | {"vocab_size": 1000}
    checkpoint.save(tmp_path / "ckpt-1.pt", state)
    code, text = run([*words(data, "sc"), f"--init_from={tmp_path}", f"--out_dir={tmp_path}/out"], "finetune.py")
    assert code == 1 and "its tokenizer has 4096 ids, its model 1000" in text


def test_a_loss_that_is_not_finite_gives_no_result(run, encoder, data, tmp_path):
    code, text = run(
        [*words(data, "sc"), f"--init_from={encoder}", "--lr=1e30", f"--out_dir={tmp_path}/out"], "finetune.py"
    )
    assert code == 1 and "no result" in text, text
    assert not (tmp_path / "out/result.json").exists()
