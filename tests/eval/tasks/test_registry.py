"""Each declared data set in miniature, the splits, your own data, and what is missing or wrong."""

import os
import runpy
import shutil
import subprocess
import sys

import pytest

from errors import DataError
from eval.tasks.readers import SPLITS, Pair, Question, Sentence, Text, by_set
from eval.tasks.registry import TASKS, find_task
from eval.tasks.result import test_set_id as checksum
from eval.tasks.splits import wanted
from task_helpers import docs_block, load, unpack

def sentence(tagged):
    words, tags = zip(*(pair.split("/") for pair in tagged.split()))
    return Sentence([*words], [*tags])


SOURCES = {name: fields["source"] for name, fields in TASKS.items() if "source" in fields}

IN_ROME = Question("x", "Where?", "In Rome.", [("Rome", 3), ("In Rome", 0)])
WHERE_IS_ANN = "Ann 9 met Bob.\n@highlight\nAnn 9 left"
DECLARED = {  # {data set: (its first test example, for ir its first training pair, and the labels)}
    "cola": (Text('"Go 99.', "acceptable"), ["unacceptable", "acceptable"]),
    "sst2": (Text('a "film 99 ', "positive"), ["negative", "positive"]),
    "mrpc": (Text('Sentence 1: "He 99.\nSentence 2: I.', "not_equivalent"), ["not_equivalent", "equivalent"]),
    "stsb": (Text("Sentence 1: A 99\nSentence 2: B", 2.5), []),
    "qqp": (Text("Question 1: 99?\nQuestion 2: B?", "duplicate"), ["not_duplicate", "duplicate"]),
    "mnli": (Text("Premise: P 99\nHypothesis: H", "neutral"), ["entailment", "neutral"]),
    "qnli": (Text("Question: 99?\nSentence: I.", "not_entailment"), ["entailment", "not_entailment"]),
    "rte": (Text("Premise: P 99\nHypothesis: H", "not_entailment"), ["entailment", "not_entailment"]),
    "conll2003": (sentence("NOVA/B-ORG left/O Oslo/B-LOC Bonn/B-LOC"), ["O", "B-LOC", "B-ORG"]),
    "ontonotes": (
        sentence("Mary/B-PERSON Jo/I-PERSON of/O Rome/B-GPE #/O"),
        ["O", "B-GPE", "B-PERSON", "I-PERSON"],
    ),
    "uner": (sentence("#/O Swiss/O Ann/B-PER"), ["O", "B-PER"]),
    "wnut17": (sentence("Zed/B-location ./O"), ["O", "B-location"]),
    "squad": (IN_ROME, []),
    "squad_v2": (IN_ROME, []),
    "record": (Question("r9", "@placeholder met Bob", WHERE_IS_ANN, [("Ann 9", 0), ("Ann 9", 26)]), []),
    "msmarco": (Pair("query 0", "Title 0. text 0"), []),
    "scifact": (Pair("query 1", "Title 1 text 1"), []),  # query 0 is held out
}


def run_docs(word, folder):
    """Run the Python block of docs/finetuning.md that holds a word, in a folder."""
    subprocess.run([sys.executable, "-c", docs_block(word)], cwd=folder, check=True)


@pytest.fixture(scope="module")
def miniatures(tmp_path_factory):
    """The folder of all tasks. Those in another form were converted by the lines of the page."""
    folder = unpack("miniatures.txt", tmp_path_factory.mktemp("miniatures"))  # of the official files
    for word in ("gold_conll", "squad_v", "record/", "mldr_en"):
        run_docs(word, folder)
    return folder


def values_of(field, queries):
    return {query.id: getattr(query, field) for query in queries}


@pytest.mark.parametrize("name", SOURCES)
def test_declared_data_set(miniatures, name):
    data = load(name, folder=miniatures)
    held = sum(count for rule, count in data.counts.items() if "held out of train" in rule)
    assert (data.name, data.family) == (name, find_task(name).family)
    assert held == (name == "scifact" or data.family in ("sc", "qa"))  # 5 %, at least one
    assert ((data.train if data.family == "ir" else data.test)[0], data.labels) == DECLARED[name]
    assert all(type(count) is int and count > 0 for count in data.counts.values())


def test_main_metrics_and_retrieval_sets(miniatures):
    assert load("qqp", folder=miniatures).main == {"field": ["accuracy", "f1"], "paper": ["accuracy"]}
    assert load("stsb", folder=miniatures).main == dict.fromkeys(("field", "paper"), ["pearson", "spearman"])
    data, names = load("msmarco", folder=miniatures), ("nq", "msmarco", "mldr")
    assert data.main["field"] == [f"{name}/ndcg@10" for name in names]
    assert data.main["paper"] == [f"{name}/ndcg@10_judged" for name in names]
    validation, test = by_set(data.validation), by_set(data.test)
    sizes = {name: (len(validation[name]), len(test[name])) for name in test}
    assert sizes == {"nq": (4, 4), "msmarco": (4, 2), "mldr": (3, 3)}  # NQ: halves of the test queries
    assert not {query.id for query in validation["nq"]} & {query.id for query in test["nq"]}
    assert data.counts["nq/validation: queries held out of test, at random"] == 4
    assert values_of("grades", test["msmarco"]) == {"q34": {"d34": 1}, "q35": {"d35": 1}}
    assert data.corpora[test["nq"][0].corpus]["d3"] == "Title 3. text 3"  # as in the paper
    corpus = data.corpora[test["mldr"][0].corpus]
    assert corpus["doc-3"] == "long text 3" and len(corpus) == 9
    assert test["mldr"][0][:3] == ("q-3", "query 3", {"doc-3": 1})
    zero_shot = load("msmarco", folder=miniatures, zero_shot=True)  # nothing of a test set is held out
    assert zero_shot.train == [] and len(by_set(zero_shot.test)["nq"]) == 8
    assert [*by_set(zero_shot.validation)] == ["msmarco", "mldr"]


EMBEDDED = [  # train, validation and test; the checksum of the test set
    ("sc", (2496, 332, 726), "4689889e"),
    ("tc", (1571, 265, 443), "ded1e0da"),
    ("qa", (2089, 213, 576), "e5e586e7"),
    ("ir", (2042, 260, 527), "bdf03135"),
]


@pytest.mark.parametrize("family, sizes, test_set", EMBEDDED)
def test_the_embedded_tasks_hold_what_they_held_and_no_text_is_in_two_splits(family, sizes, test_set):
    data = load(f"embedded-{family}")
    splits = {split: getattr(data, split) for split in SPLITS}
    assert tuple(map(len, splits.values())) == sizes and checksum(data.test) == test_set and data.counts == {}
    if family == "ir":
        documents = [{*corpus.values()} for corpus in data.corpora.values()]
        documents.append({pair.document for pair in data.train})
        assert sum(map(len, documents)) == len(set().union(*documents))
        return
    keys = [{example.key for example in examples} for examples in splits.values()]
    assert sum(map(len, keys)) == len(set().union(*keys))


TABLE = "text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(9))


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
    table = "body,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(9))
    files.put("own/a/train.csv", table), files.put("own/test.csv", table)
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
    expected = load(family="ir", corpus=folder)
    assert len(expected.train) == 20 and len(expected.validation) == 3
    qrels = f"{folder}/qrels"
    for fields in (dict(train=folder), dict(train=folder, validation=f"{qrels}/dev.tsv", test=f"{qrels}/test.tsv")):
        found = load(family="ir", **fields)
        assert (found.train, found.validation, found.test) == (expected.train, expected.validation, expected.test)


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
        path = files.folder / f"mteb/{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    run_docs("parquet", files.folder)
    data = load(family="ir", corpus=f"{files.folder}/beir", zero_shot=True)
    assert data.test[0][:3] == ("1", "b", {"d": 2}) and [*data.corpora.values()] == [{"d": "t a"}]
    files.put("train.jsonl", [{"tokens": ["a", "b"], "label": ["I-X", "O"]}] * 2)
    run_docs("train.conll", files.folder)
    path = f"{files.folder}/train.conll"
    assert load(family="tc", train=path, validation=path, test=path).test == [sentence("a/B-X b/O")] * 2


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
    for name in SOURCES:
        with pytest.raises(DataError, match=f"^{name}: missing:\n  {tmp_path}.*(\n.*)*https://"):
            load(name, folder=tmp_path)
    shutil.copytree(miniatures / "scifact_beir", tmp_path / "scifact_beir")
    (tmp_path / "scifact_beir" / "queries.jsonl").unlink()
    with pytest.raises(DataError, match="missing:\n  [^ ]*scifact_beir/queries.jsonl\n  Get them from https"):
        load("scifact", folder=tmp_path)


def test_the_list_and_wrong_commands(tmp_path, monkeypatch, capsys):
    unpack("miniatures.txt", tmp_path / "all")
    for name in ("sst2", "scifact_beir"):
        shutil.copytree(tmp_path / "all" / name, tmp_path / "data/tasks" / name)
    monkeypatch.chdir(tmp_path)

    def command(*args):
        monkeypatch.setattr("sys.argv", ["eval.tasks", *args])
        runpy.run_module("eval.tasks", run_name="__main__")

    command()
    there = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()[1:]}
    assert there == {name: "yes" if name in ("sst2", "scifact") or "-" in name else "no" for name in TASKS}
    for word, status in ("nothing", 2), ("--help", 0):
        with pytest.raises(SystemExit, match=f"^{status}$"):
            command(word)
