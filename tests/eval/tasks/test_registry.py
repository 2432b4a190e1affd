"""Each declared data set in miniature, the splits, your own data, and what is missing or wrong."""

import os
import runpy
import shutil
import subprocess
import sys

import pytest

from errors import DataError
from eval.tasks.readers import SPLITS, Pair, Sentence, Text, by_set
from eval.tasks.registry import METRICS, TASKS
from eval.tasks.result import test_set_id as checksum
from task_helpers import Files, cases, docs_block, load, parts_of, unpack

DECLARED = parts_of("declared.txt")


def run_docs(folder, *words):
    """Run the Python blocks of docs/finetuning.md that hold these words, in a folder."""
    for word in words:
        subprocess.run([sys.executable, "-c", docs_block(word)], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module")
def miniatures(tmp_path_factory):
    """The folder of all tasks. Those in another form were converted by the lines of the page."""
    folder = unpack("miniatures.txt", tmp_path_factory.mktemp("miniatures"))  # of the official files
    return run_docs(folder, "gold_conll", "squad_v", "record/", "mldr_en")


def values_of(field, queries):
    return {query.id: getattr(query, field) for query in queries}


@pytest.mark.parametrize("name", TASKS)
def test_each_named_data_set_is_read_as_declared(miniatures, name):
    data = load(name, folder=miniatures)
    sizes = [{part: len(examples) for part, examples in by_set(getattr(data, split)).items()} for split in SPLITS]
    example = (data.train if data.family == "ir" else data.test)[0]
    lines = [f"family {data.family}, main metrics {data.main}", f"labels {data.labels}", f"sizes {sizes}"]
    lines += [f"test set {checksum(data.test)}", f"counts {data.counts}", f"{example}"]
    assert DECLARED[name].strip() == "\n".join(lines)


def test_the_sets_of_msmarco(miniatures):
    data = load("msmarco", folder=miniatures)
    validation, test = by_set(data.validation), by_set(data.test)
    assert not {query.id for query in validation["nq"]} & {query.id for query in test["nq"]}  # halves of the queries
    assert values_of("grades", test["msmarco"]) == {"q34": {"d34": 1}, "q35": {"d35": 1}}
    assert data.corpora[test["nq"][0].corpus]["d3"] == "Title 3. text 3"  # as in the paper
    corpus = data.corpora[test["mldr"][0].corpus]
    assert corpus["doc-3"] == "long text 3" and len(corpus) == 9
    assert test["mldr"][0][:3] == ("q-3", "query 3", {"doc-3": 1})
    zero_shot = load("msmarco", folder=miniatures, zero_shot=True)  # nothing of a test set is held out
    assert zero_shot.train == [] and len(by_set(zero_shot.test)["nq"]) == 8
    assert [*by_set(zero_shot.validation)] == ["msmarco", "mldr"]


@pytest.mark.parametrize("family", METRICS)
def test_no_text_of_an_embedded_task_is_in_two_splits(family):
    data = load(f"embedded-{family}")
    if family == "ir":
        splits = [{*corpus.values()} for corpus in data.corpora.values()] + [{pair.document for pair in data.train}]
    else:
        splits = [{example.key for example in getattr(data, split)} for split in SPLITS]
    assert sum(map(len, splits)) == len(set().union(*splits))


ROWS = ",label\n" + "".join(f"t{i},{i % 2}\n" for i in range(9))
TABLE = f"text{ROWS}"


def own(files, train, test=TABLE, **fields):
    return load(family="sc", train=files.put("train.csv", train), test=files.put("test.csv", test), **fields)


def test_questions_are_held_out_with_their_context(files):
    answers = {"text": [], "answer_start": []}
    rows = [{"question": "Which?", "context": f"Town {i // 3}.", "answers": answers} for i in range(120)]
    rows.append({"question": "Who?", "context": "It.", "answers": {"text": ["no"], "answer_start": [0]}})
    path = files.put("a.jsonl", rows)
    data = load(family="qa", train=path, test=path)
    assert len(data.test) == 121 and len(data.train + data.validation) == 120  # no answer to learn from
    held = {question.context for question in data.validation}
    assert len(held) == 2 and len(data.validation) == 6 and not held & {question.context for question in data.train}


def test_labels_come_from_training(files):
    data = own(files, TABLE, "text,label\nx,c\nt1,1\n", validation=files.put("valid.csv", "text,label\nv,1\n"))
    assert data.labels == ["0", "1"] and len(data.train) == 9 and data.validation == [Text("v", "1")]
    with pytest.raises(DataError, match="matthews is only for two labels, but there are 3: 0, 1, eggs"):
        own(files, TABLE + "x,eggs\ny,eggs\nz,eggs\n", metric="accuracy,matthews")
    # Nothing to learn from. Of two labels, one was held out to validate on; and two equal texts cannot be divided.
    for rows in ("", "x,1\ny,1\nz,1\n", "x,1\ny,0\n", "x,1\nx,0\n"):
        with pytest.raises(DataError, match="train.csv: "):
            own(files, "text,label\n" + rows)


TAGS = "a B-PER\nb I-PER\nc O\n"


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("family, train, given, unknown", [
    ("sc", TABLE, "x,0\nx,1\n", {}),
    ("sc", TABLE, "x,0.0\nx,1.0\nx,1.0\nx,1\n", {"0.0": 1, "1.0": 2}),
    ("sc", TABLE, "x,-1\nx,true\nx,False\n", {"-1": 1, "true": 1, "False": 1}),
    ("sc", TABLE, "x, 1\nx,0 \nx,l\n", {" 1": 1, "0 ": 1, "l": 1}),
    ("tc", TAGS, "a I-PER\nb I-PER\n", {}),  # whatever the scheme
    ("tc", TAGS, "a B-PER\nb E-PER\nc S-PER\n", {}),
    ("tc", TAGS, "a S-per\n", {"B-per": 1}),
])  # fmt: skip
def test_labels_that_training_does_not_have_are_counted(files, split, family, train, given, unknown):
    paths = dict.fromkeys(SPLITS, files.put("train.csv", train))
    paths[split] = files.put("other.csv", "text,label\n" * (family == "sc") + given)
    data = load(family=family, **paths)
    rules = {f"{split}: labels that training does not have, {unknown}": sum(unknown.values())} if unknown else {}
    assert data.counts == rules and all(f"{rule}: {n}\n" in data.summary() for rule, n in rules.items())


def test_a_task_file_names_your_own_data(files):
    for name in ("own/a/train.csv", "own/test.csv"):
        files.put(name, f"body{ROWS}")
    text = 'family = "sc"\ntrain = "a/train.csv"\ntest = "test.csv"\ncolumns = "body"\nmetric = "f1"  # main\n'
    path = files.put("own/topics.py", text)
    data = load(path)
    assert (data.name, data.family, data.main["field"], len(data.train)) == ("topics", "sc", ["f1"], 8)
    with pytest.raises(DataError, match="columns: task=.*topics.py says this itself"):
        load(path, columns="text")
    for name, wrong in (("own/sst2.py", text), ("a.py", 'train = "x"'), ("a.py", text + "print()"), ("a.py", "lr = 1")):
        with pytest.raises(DataError):
            load(files.put(name, wrong))


@pytest.fixture(scope="module")
def own_folders(tmp_path_factory):
    files = Files(tmp_path_factory.mktemp("own"))
    files.beir("all", train=20, dev=3, test=4)
    files.beir("no-dev", train=40, test=3)
    files.beir("equal", train=40, test=3, queries=[f"query {i % 4}" for i in range(43)])
    files.beir("small", train=4, test=3)
    files.beir("dev", dev=2, test=1)
    files.beir("test", test=2, gz=".gz")
    files.put("pairs.jsonl", [{"query": "who", "document": "me"}])
    os.symlink(files.folder / "no-dev", files.folder / "link")  # the same folder by another name
    files.beir("judged", train=20, dev=2, documents=[f"text {i}" * (i != 1) for i in range(30)], test=2)
    files.qrels("judged/qrels/test.tsv", ("q22", "d22", 2), ("q22", "d1", 0), ("q23", "d0", 0))
    return files.folder


@pytest.mark.parametrize("case", cases("own_folders.jsonl"))
def test_what_folders_in_the_beir_layout_are_read_as(own_folders, monkeypatch, case):
    monkeypatch.chdir(own_folders)
    if "message" in case:
        with pytest.raises(DataError, match=case["message"]):
            load(family="ir", **case["given"])
        return
    data = load(family="ir", **case["given"])
    found = {"train": len(data.train), "validation": values_of("text", data.validation)}
    found |= {"test": values_of("grades", data.test), "counts": data.counts, "field": data.main["field"]}
    for name, corpus in data.corpora.items():
        found[name] = corpus if len(corpus) < 6 else len(corpus)
    assert found == case["reads"]
    assert not data.counts or not {*found["validation"].values()} & {pair.query for pair in data.train}


def test_other_forms_by_the_lines_of_the_page(files, miniatures):
    corpus, pairs = files.beir("b", train=40, test=6), f"{miniatures}/squad_v1.1/pairs-train-v1.1.jsonl"
    data = load(family="ir", corpus=corpus, train=pairs)
    assert len(data.train) == 20 and data.train[7] == Pair("Which?", "Town 7 is big.")
    pyarrow, parquet = map(pytest.importorskip, ("pyarrow", "pyarrow.parquet"))
    parts = {"corpus/dev-0": [{"id": "x", "text": "x"}], "corpus/test-0": [{"id": "d", "text": "a", "title": "t"}]}
    parts |= {"queries/all": [{"_id": 1, "text": "b"}], "qrels/test": [{"query-id": 1, "corpus-id": "d", "score": 2}]}
    for name, rows in parts.items():
        parquet.write_table(pyarrow.Table.from_pylist(rows), files.put(f"mteb/{name}.parquet", ""))
    run_docs(files.folder, "parquet")
    data = load(family="ir", corpus=f"{files.folder}/beir", zero_shot=True)
    assert data.test[0][:3] == ("1", "b", {"d": 2}) and [*data.corpora.values()] == [{"d": "t a"}]
    files.put("train.jsonl", [{"tokens": ["a", "b"], "label": ["I-X", "O"]}] * 2)
    run_docs(files.folder, "train.conll")
    path = f"{files.folder}/train.conll"
    assert load(family="tc", train=path, validation=path, test=path).test == [Sentence(["a", "b"], ["B-X", "O"])] * 2


@pytest.mark.parametrize("case", cases("wrong_tasks.jsonl"))
def test_wrong_arguments(case):
    with pytest.raises(DataError, match=case["message"]):
        load(**case["given"])


def test_missing_files_are_listed_with_where_to_get_them(miniatures, tmp_path):
    for name in [name for name, fields in TASKS.items() if "source" in fields]:
        with pytest.raises(DataError, match=f"^{name}: missing:\n  {tmp_path}.*(\n.*)*https://"):
            load(name, folder=tmp_path)
    folder = shutil.copytree(miniatures / "scifact_beir", tmp_path / "scifact_beir")
    (folder / "queries.jsonl").unlink()
    with pytest.raises(DataError, match="missing:\n  [^ ]*scifact_beir/queries.jsonl\n  Get them from https"):
        load("scifact", folder=tmp_path)


def test_the_list_says_which_files_are_there(miniatures, tmp_path, monkeypatch, capsys):
    for name in ("sst2", "scifact_beir"):
        shutil.copytree(miniatures / name, tmp_path / "data/tasks" / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["eval.tasks"])
    runpy.run_module("eval.tasks", run_name="__main__")
    there = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert there == {name: "yes" if name in ("sst2", "scifact") or "-" in name else "no" for name in TASKS}
