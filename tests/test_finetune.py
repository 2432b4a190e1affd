"""Whole runs of finetune.py, on made-up tasks that a tiny model with random weights can learn."""

import json
import os
import random
import re

import numpy as np
import pytest
import torch

import checkpoint
from run import read_metrics
from eval.tasks import metrics
from helpers import Run
from task_helpers import Files, docs_block

WORDS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau".split()
COLORS, ANIMALS = "red green blue black white".split(), "cat dog horse mouse bird".split()
TRAINING = "--dtype=float32 --epochs=20 --lr=3e-3 --batch_size=16".split()
GIVEN = {
    "sc": "--train={0}/train.csv --test={0}/test.csv --columns=text --label=y --form={{}}",
    "tc": "--train={0}/train.conll --test={0}/test.conll",
    "qa": "--train={0}/train.jsonl --test={0}/test.jsonl",
    "ir": "--corpus={0}/beir",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder with examples of sc (is there a color?), tc (which words are colors?), qa (which color?) and ir."""
    files, rng = Files(tmp_path_factory.mktemp("tasks")), random.Random(0)
    for split, n in ("train", 700), ("test", 120):
        rows, sentences, questions = "text,y\n", "", []
        for i in range(n):
            words, color = rng.choices(WORDS, k=8), rng.choice(COLORS)
            words[rng.randrange(8)] = color
            context = " ".join(words)
            answers = {"text": [color], "answer_start": [context.index(color)]}
            questions.append(dict(id=f"{i}", question="Which color?", context=context, answers=answers))
            sentences += "".join(f"{word} {'B-COL' if word == color else 'O'}\n" for word in words) + "\n"
            rows += f"{context.replace(color, rng.choice(ANIMALS))},False\n" if i % 2 else f"{context},True\n"
        for ending, content in ("csv", rows), ("conll", sentences), ("jsonl", questions):
            files.put(f"{split}.{ending}", content)
    texts = [rng.sample(WORDS + COLORS + ANIMALS, 5) for _ in range(500)]
    documents, queries = [" ".join(words) for words in texts], [" ".join(words[:3]) for words in texts]
    files.beir("beir", train=440, test=60, documents=documents, queries=queries)
    return files.folder


def args(data, family):
    """The arguments that describe the made-up task of a family."""
    return [f"--family={family}", *GIVEN[family].format(data).split(), *TRAINING]


@pytest.fixture(scope="module")
def fine_tune(encoder, tmp_path_factory):
    """fine_tune(args, init_from) -> (output, folder) of a run that must succeed."""

    def one(args, init_from=encoder):
        folder = tmp_path_factory.mktemp("run")
        out = [f"--init_from={init_from}", f"--out_dir={folder}/out"]
        code, text = Run([*out, *args], folder / "text", "finetune.py").wait()
        assert code == 0, text
        return text, folder / "out"

    return one


@pytest.fixture(scope="module")
def tuned(fine_tune, data):
    """A saved model for sc."""
    return fine_tune([*args(data, "sc"), "--max_steps=60", "--save_model=True"])


@pytest.fixture(scope="module")
def tagged(fine_tune, data):
    """Two short runs for tc with the same arguments."""
    return [fine_tune([*args(data, "tc"), "--max_steps=5", "--test_examples=20"]) for _ in range(2)]


def read(folder):
    return json.loads((folder / "result.json").read_text())


def assert_learned(text, folder, family, metric, at_least):
    result = read(folder)
    test = result["metrics"]["test"]
    assert test[metric] > at_least, text
    assert (result["family"], result["examples"]["test"]) == (family, 60 if family == "ir" else 120)
    assert {"name": "tiny-650", "step": 650, "clm_steps": 200, "seed": 1}.items() <= result["checkpoint"].items()
    arrays = np.load(folder / "instances.npz")
    assert {name: metrics.score(arrays[name]) for name in arrays} == pytest.approx(test, abs=1e-4)
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == result["examples"]["test"]
    if family in ("sc", "tc"):
        right = [a == b for line in lines for a, b in zip(np.ravel(line["gold"]), np.ravel(line["predicted"]))]
        assert 100 * np.mean(right) >= test[metric] - 1e-4
    assert all(scores.keys() <= test.keys() and name in text for name, scores in result["baselines"].items())


def test_a_run_learns_its_task_and_shows_its_scores(tuned):
    text, folder = tuned
    assert_learned(text, folder, "sc", "accuracy", 80)
    accuracy = read(folder)["metrics"]["test"]["accuracy"]
    assert re.search(f"^accuracy .main. +{accuracy:.2f} ", text, re.M), text


@pytest.mark.parametrize("block, module, said", [
    ("classification_report", "sklearn", r"\n +True .*\n +accuracy .*120\n"),
    ("classification_report", "seqeval", r"\n +COL .*\n +micro avg .*\n"),
    ("evaluate", "torch", r"^{scores}\n(True|False) 0\.\d+\n$"),
    ("import bm25s", "bm25s", r"^ndcg@10_judged 5\d\."),
])  # fmt: skip
def test_the_lines_of_the_docs(tuned, tagged, data, tmp_path, monkeypatch, capsys, block, module, said):
    """They print the report of classes, score a saved model, and predict."""
    pytest.importorskip(module)
    folder = tagged[0][1] if module == "seqeval" else tuned[1]
    (tmp_path / "out").mkdir()
    for link in ("topics", "kept"):
        (tmp_path / "out" / link).symlink_to(folder)
    (tmp_path / "test.csv").symlink_to(data / "test.csv")
    monkeypatch.chdir(tmp_path)
    exec(docs_block(block).replace("sklearn", module), {})
    said = said.replace("{scores}", re.escape(str(read(folder)["metrics"]["test"])))
    assert re.search(said, capsys.readouterr().out.replace("\n\n", "\n"))


@pytest.mark.slow
@pytest.mark.parametrize("family, metric, at_least", [("tc", "entity_f1", 80), ("qa", "f1", 70), ("ir", "mrr@10", 30)])
def test_each_family_learns(fine_tune, data, family, metric, at_least):
    assert_learned(*fine_tune([*args(data, family), "--max_steps=200"]), family, metric, at_least)


def test_a_repeated_run_writes_the_same_bytes(tagged):
    (_, a), (_, b) = tagged
    for name in ("result.json", "instances.npz", "metrics.jsonl", "predictions.jsonl"):
        assert (a / name).read_bytes() == (b / name).read_bytes()


def test_the_loss_of_five_steps_is_as_before(fine_tune, data):
    """Gradients that are not set to zero would change it by 0.0007."""
    _, folder = fine_tune([*args(data, "tc"), "--max_steps=5", "--test_examples=20", "--dropout=0"])
    assert read_metrics(folder)[-1]["loss"] == pytest.approx(0.43179, abs=1e-4)


def test_a_task_file_that_predicts_numbers(fine_tune, data):
    text = (data / "train.csv").read_text().replace("True", "520.5").replace("False", "-80")
    (data / "numbers.csv").write_text(text)
    task = 'family = "sc"\ntrain = "numbers.csv"\ntest = "numbers.csv"\nlabel = "y"\nmetric = "pearson"\n'
    (data / "numbers.py").write_text(task)
    more = ["--max_steps=60", "--test_examples=100", "--save_model=True"]
    text, folder = fine_tune([f"--task={data}/numbers.py", *TRAINING, *more])
    result = read(folder)
    assert (result["task"], result["main"]["field"], result["labels"]) == ("numbers", ["pearson"], [])
    assert result["metrics"]["test"]["pearson"] > 80 and "numbers (sc), pearson" in text
    assert checkpoint.load(folder / "model.pt")["fine_tuned"]["head"]["2.bias"] == pytest.approx(220, abs=150)


def test_what_the_settings_change(fine_tune, encoder, data):
    """A frozen encoder stays as it was."""
    given, losses = "--max_steps=2 --test_examples=9 --save_model=True".split(), set()
    for more in ("--seed=1", "--causal=True", "--random_weights=True", "--freeze=True"):
        _, folder = fine_tune([*args(data, "sc"), *given, more])
        losses.add(read_metrics(folder)[-1]["loss"])
        result = read(folder)
        assert result["checkpoint"]["untrained"] == (more == "--random_weights=True")
        assert [*result["baselines"]] == ["majority"] and result["examples"]["test"] == 9
    before, after = checkpoint.load(encoder)["model"], checkpoint.load(folder / "model.pt")
    assert all(torch.equal(before[name], after["model"][name]) for name in before)
    assert after["fine_tuned"]["head"]["0.bias"].abs().max() > 0 and len(losses) == 4


@pytest.mark.parametrize("more, message", [
    ("--init_from={}/model.pt", "fine-tuned already"),
    ("--lr=1e18 --eval_interval=5", "no result. A smaller --lr may help"),
])  # fmt: skip
def test_what_cannot_work_gives_no_result(run, encoder, data, tuned, tmp_path, more, message):
    given = [*args(data, "sc"), f"--init_from={encoder}", *more.format(tuned[1]).split()]
    code, text = run([*given, f"--out_dir={tmp_path}/out"], "finetune.py")
    assert code == 1 and message in text and "Traceback" not in text, text
    assert set(os.listdir(tmp_path / "out")) <= {"lock", "metrics.jsonl"}


def test_what_is_counted_is_said_before_training_and_stays_in_the_result(fine_tune, data, tuned, tagged):
    """Half of the labels are unknown, and some texts are too long."""
    lines = (data / "test.csv").read_text().replace("True", "true").splitlines()
    (data / "odd.csv").write_text("\n".join([*lines[:41], *("alpha " * 70 + line for line in lines[41:44])]))
    text, folder = fine_tune([*args(data, "sc"), f"--test={data}/odd.csv", "--max_steps=1"])
    before, _, _ = text.partition("The first example")
    unknown, cut = "test: labels that training does not have, {'true': 22}", "test: texts cut to 64 tokens"
    assert f"\n{unknown}: 22\n" in before and f"\n{cut}: 3\n" in before
    assert read(folder)["counts"].items() >= {unknown: 22, cut: 3}.items()
    same, other = (read(run)["settings"]["data"] for run in (tuned[1], tagged[0][1]))
    assert read(folder)["settings"]["data"] == same != other and read(folder)["test_set"] != read(tuned[1])["test_set"]
