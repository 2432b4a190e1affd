"""New text through a saved model: the answers are those of scoring, in the order of the input."""

import json
import re
import subprocess
import sys

import pytest
from helpers import ROOT

import checkpoint
from eval.tasks import predict
from eval.tasks.readers import Question, Sentence, Text
from eval.tasks.result import evaluate, prediction_lines

WORDS = "red fish and a blue one swim in Lake Victoria while nobody is looking at 3,000 of them".split()
TEXTS = [" ".join(WORDS[i % 7 : i % 7 + 1 + 5 * i % 11]) for i in range(11)]


def new_text(family):
    """Yield (example, the row of a table that holds it)."""
    for text in TEXTS:
        words, context = text.split(), " ".join([text] * 20)
        tags = (["O", "B-X"] * 6)[: len(words)]
        question, answers = dict(id=text, question=f"{text}?", context=context), dict(text=[text], answer_start=[0])
        yield {
            "sc": (Text(f"T: {text} B: x y", "yes"), dict(title=text, body="x", end="y", label="yes")),
            "tc": (Sentence(words, tags), dict(tokens=words, label=tags)),
            "qa": (Question(**question, answers=[(text, 0)]), question | dict(answers=answers)),
        }[family]


@pytest.mark.parametrize("labeled", [True, False])
@pytest.mark.parametrize("family", ["sc", "tc", "qa"])
def test_new_text_gets_the_answers_of_scoring(saved, files, tmp_path, capsys, family, labeled):
    """And a table with labels the scores."""
    task, model = saved(family)
    examples, rows = map(list, zip(*new_text(family)))
    if not labeled:
        rows = [{name: value for name, value in row.items() if name not in ("label", "answers")} for row in rows]
    scores, _, answers = evaluate(task, model, examples, "test")
    expected = [*map(json.loads, prediction_lines(answers, examples))]
    out = tmp_path / "out.jsonl"
    args = [f"{tmp_path}/model.pt", files.put("new.jsonl", rows), f"--out={out}", "--dtype=float32"]
    predict.main(args)
    text = capsys.readouterr().out
    assert (f"scores of {len(examples)} examples: " in text) == labeled
    assert not labeled or all(f"{metric} {score:.2f}" in text for metric, score in scores.items()), text
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["id"] for line in found] == [line["id"] for line in expected]
    for line, other in zip(found, expected):
        assert line["predicted"] == other["predicted"] and line["score"] == pytest.approx(other["score"], abs=1e-4)
    assert len({str(line["score"]) for line in found}) > 3
    for chunk in (1, 4):  # whatever the company of a text, and in the order of the input
        pairs = [*predict.predict(task, model, examples, chunk)]
        assert [example for example, _ in pairs] == examples
        for (_, answer), other in zip(pairs, answers):
            assert answer.score == pytest.approx(other.score, abs=1e-5)


def test_a_file_with_a_row_without_a_label_is_not_scored(saved, files, tmp_path, capsys):
    saved("sc")
    for last, scored in ((None, False), ("", False), ("maybe", True)):
        rows = [{"title": "a", "body": "b", "end": "c", "label": label} for label in ("yes", last)]
        predict.main([f"{tmp_path}/model.pt", files.put("a.jsonl", rows), f"--out={tmp_path}/out"])
        assert ("scores" in capsys.readouterr().out) == scored


@pytest.mark.parametrize("family, name, content, message", [
    ("sc", "a.jsonl", '{"title"\n', "a.jsonl, line 1: "),  # the other faults of rows: test_readers.py
    ("ir", "a.csv", "text\na\n", "export it"),
])  # fmt: skip
def test_what_cannot_be_read_stops_without_a_file(saved, files, tmp_path, family, name, content, message):
    saved(family)
    args = [f"{tmp_path}/model.pt", files.put(name, content), f"--out={tmp_path}/out.jsonl"]
    with pytest.raises(SystemExit, match="stopped: nothing was written to .*out.jsonl$") as stop:
        predict.main(args)
    assert re.search(message, stop.value.code) and not [*tmp_path.glob("out.jsonl*")]


@pytest.mark.parametrize("spelling", ["new.jsonl", "x/../new.jsonl", "link", "hard", "model.pt"])
def test_the_output_is_never_the_input_or_the_model(saved, files, tmp_path, monkeypatch, spelling):
    saved("sc")
    monkeypatch.chdir(tmp_path)
    files.put("new.jsonl", [dict(title="a", body="b", end="c")])
    (tmp_path / "x").mkdir()
    (tmp_path / "link").symlink_to("new.jsonl")
    (tmp_path / "hard").hardlink_to(tmp_path / "new.jsonl")
    before = {name: (tmp_path / name).read_bytes() for name in ("new.jsonl", "model.pt")}
    with pytest.raises(SystemExit, match=f"--out={spelling} is .* give another file"):
        predict.main(["model.pt", "new.jsonl", f"--out={spelling}"])
    assert before == {name: (tmp_path / name).read_bytes() for name in before} and (tmp_path / "link").is_symlink()


def test_a_model_that_finetune_did_not_save_is_refused(saved, encoder, tmp_path):
    with pytest.raises(SystemExit, match="is not a model that finetune.py --save_model=True kept"):
        predict.main([str(encoder), "a.txt"])
    saved("sc")
    state = checkpoint.load(tmp_path / "model.pt")
    for part in ("settings", "labels", "head", "task"):
        fine_tuned = {name: value for name, value in state["fine_tuned"].items() if name != part}
        checkpoint.save(tmp_path / "forged.pt", state | {"fine_tuned": fine_tuned})
        with pytest.raises(SystemExit, match="forged.pt is damaged or not a checkpoint of this project"):
            predict.main([f"{tmp_path}/forged.pt", "a.txt"])


@pytest.mark.slow
def test_standard_input_and_output(saved, files, tmp_path):
    saved("sc")
    rows = "".join(json.dumps(row) + "\n" for _, row in new_text("sc"))
    command = [sys.executable, "-m", "eval.tasks", "predict", f"{tmp_path}/model.pt"]
    done = subprocess.run(command, input=rows, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and [json.loads(line)["id"] for line in done.stdout.splitlines()] == [*range(1, 12)]
