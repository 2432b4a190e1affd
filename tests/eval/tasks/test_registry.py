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
from eval.tasks.splits import wanted
from task_helpers import docs_block, load, parts_of, unpack

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


def test_one_beir_folder_is_enough(files):
    folder = files.beir("a", train=20, dev=3, test=4)
    named = dict(train=folder, validation=f"{folder}/qrels/dev.tsv", test=f"{folder}/qrels/test.tsv")
    one, *others = [load(family="ir", **fields) for fields in (dict(corpus=folder), dict(train=folder), named)]
    assert (len(one.train), len(one.validation), len(one.test)) == (20, 3, 4)
    for found in others:
        assert (found.train, found.validation, found.test) == (one.train, one.validation, one.test)


def test_queries_are_held_out_to_validate_on_equal_ones_together(files):
    folder = files.beir("b", train=40, test=3)
    data = load(family="ir", corpus=folder + "/", train=folder)
    held = values_of("text", data.validation)
    assert len(held) == 2 and len(data.train) == 38 and [len(corpus) for corpus in data.corpora.values()] == [48]
    assert not {*held.values()} & {pair.query for pair in data.train}
    assert values_of("text", data.test) == {f"q{i}": f"query {i}" for i in (40, 41, 42)}
    assert data.counts == {"validation: queries held out of train, at random": 2}
    os.symlink(folder, f"{folder}-link")  # the same folder by another name
    linked = load(family="ir", train=f"{folder}-link", corpus=folder)
    assert (linked.train, linked.validation) == (data.train, data.validation)
    files.put("b/queries.jsonl", [{"_id": f"q{i}", "text": f"query {i % 4}"} for i in range(43)])
    queries = values_of("text", load(family="ir", corpus=folder).validation)
    assert len(queries) == 10 and len({*queries.values()}) == 1


def test_judgments_of_another_beir_folder_are_searched_in_its_corpus(files):
    one, other = files.beir("one", train=4, test=3), files.beir("other", dev=2, test=1)
    for full, sizes in ((True, (8, 12)), (False, (2, 3))):
        data = load(family="ir", train=one, validation=f"{other}/qrels/dev.tsv", full_corpus=full)
        assert tuple(len(data.corpora[part[0].corpus]) for part in (data.validation, data.test)) == sizes
        assert values_of("text", data.validation) == {"q0": "query 0", "q1": "query 1"} and data.test[0].id == "q4"
        assert [*wanted((*data.validation, *data.test)).values()] == [{"d0", "d1"}, {"d4", "d5", "d6"}]


def test_retrieval_trained_on_other_files(files):
    """No query of the test set is used to validate on, unless one says so."""
    corpus, pairs = files.beir("b", test=6), files.put("pairs.jsonl", [{"query": "who", "document": "me"}])
    judgments = f"{corpus}/qrels/test.tsv"
    with pytest.raises(DataError, match="b/qrels/train.tsv\n  .* To validate on, give .* or validation="):
        load(family="ir", corpus=corpus, train=pairs)
    with pytest.raises(DataError, match="missing:\n  none.jsonl\n"):
        load(family="ir", corpus=corpus, train="none.jsonl", validation=judgments)
    data = load(family="ir", corpus=corpus, train="none.jsonl", zero_shot=True)
    assert (data.train, data.validation, len(data.test)) == ([], [], 6)
    data = load(family="ir", corpus=corpus, train=files.beir("c", train=4, test=1), validation=judgments)
    assert len(data.train) == 4 and data.validation == data.test and len(data.test) == 6
    data = load(family="ir", corpus=files.beir("d", train=40, test=6, gz=".gz"), train=pairs)
    assert data.train == [Pair("who", "me")] and (len(data.validation), len(data.test)) == (2, 6)


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


def test_judged_documents_only(files):
    folder = files.beir("b", train=20, dev=2, test=2)
    files.qrels("b/qrels/test.tsv", ("q22", "d22", 2), ("q22", "d1", 0), ("q23", "d0", 0))
    files.put("b/corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": f"text {i}" * (i != 1)} for i in range(30)])
    data = load(family="ir", corpus=folder, full_corpus=False)
    corpus = {"d20": "text 20", "d21": "text 21", "d22": "text 22", "d1": "", "d0": "text 0"}
    assert [*data.corpora.values()] == [corpus]
    assert values_of("grades", data.test) == {"q22": {"d22": 2, "d1": 0}, "q23": {"d0": 0}}
    assert len(data.train) == 20 and data.main == {"field": [], "paper": ["ndcg@10_judged"]}


WRONG = [
    (dict(task="sst22"), "task=sst22: no such task. There are cola, sst2, "),
    (dict(task="sst2", family="qa"), "family: task=sst2 says this itself"),
    (dict(), "family=''"),
    (dict(family="qa", form="{}", train="a", test="a"), "form: qa takes only family, metric, train"),
    (dict(family="sc", test="no.csv"), "family=sc: give --train and --test$"),
    (dict(family="sc", train="no.csv", test="no.csv"), "missing:\n  no.csv$"),
    (dict(task="no.py"), "no.py: "),
    (dict(family="sc", metric="f1,pearson"), "metric=f1,pearson: .*accuracy, f1, matthews, or of pearson"),
    (dict(family="ir", test="no.tsv"), "family=ir: give --corpus$"),
    (dict(family="ir", corpus="beir", test="a.tsv"), "test=a.tsv: .*FOLDER/qrels/NAME.tsv"),
    (dict(family="ir", corpus="beir", validation="b"), "validation=b: .*FOLDER/qrels/NAME.tsv"),
    (dict(task="sst2", zero_shot=True), "max_steps=0: sst2 has a head"),
]


@pytest.mark.parametrize("arguments, message", WRONG)
def test_wrong_arguments(arguments, message):
    with pytest.raises(DataError, match=message):
        load(**arguments)


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
