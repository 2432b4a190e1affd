"""Each declared data set in miniature, the splits, your own data, and what is missing or wrong."""

import csv
import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from io import StringIO

import numpy as np
import pytest
from task_helpers import TOKENIZER, Files, cases, docs_block, load, parts_of, score, unpack

from errors import DataError
from eval.tasks.families import FAMILIES
from eval.tasks.readers import SPLITS, Pair, Sentence, Text, by_set
from eval.tasks.registry import METRICS, TASKS
from eval.tasks.result import data_id
from eval.tasks.retriever import STUDY

DECLARED = parts_of("declared.txt")
TABLE = "text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(9))
IDS = "d{}".format, "{:03}".format, "a b {}".format, "é{}".format, 'in "{}"'.format, "'{}'".format, "{}".format, int


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


@pytest.mark.parametrize("task", DECLARED)
def test_each_named_data_set_is_read_as_declared(miniatures, task):
    name, _, zero_shot = task.partition(", ")
    data = load(name, folder=miniatures, zero_shot=bool(zero_shot))
    sizes = [{part: len(examples) for part, examples in by_set(getattr(data, split)).items()} for split in SPLITS]
    lines = [f"family {data.family}, main metrics {data.main}", f"labels {data.labels}", f"sizes {sizes}"]
    lines += [f"test set {data_id(data.test)}", f"counts {data.counts}"]
    lines.append(f"first example {(data.train if data.train and data.family == 'ir' else data.test)[0]}")
    for part in by_set(data.test).values() if name == "msmarco" else ():
        corpus, validation = data.corpora[part[0].corpus], by_set(data.validation).get(part[0].set, [])
        lines.append(f"{[query.id for query in validation]}, {[query.id for query in part]}, {part[0][1:3]}")
        lines.append(f"{len(corpus)} documents, {corpus[min(part[0].grades)]!r}")
    assert DECLARED[task].strip() == "\n".join(lines).replace(str(miniatures), "")
    assert {*TASKS} == {task.partition(", ")[0] for task in DECLARED}


@pytest.mark.parametrize("family", METRICS)
def test_no_text_of_an_embedded_task_is_in_two_splits(family):
    data = load(f"embedded-{family}")
    if family == "ir":
        splits = [{*corpus.values()} for corpus in data.corpora.values()] + [{pair.document for pair in data.train}]
    else:
        splits = [{example.key for example in getattr(data, split)} for split in SPLITS]
    assert sum(map(len, splits)) == len(set().union(*splits))


def own(files, train, test=TABLE, **fields):
    return load(family="sc", train=files.put("train.csv", train), test=files.put("test.csv", test), **fields)


def test_questions_are_held_out_with_their_context(files):
    answers = {"text": [], "answer_start": []}
    path = files.put("a.jsonl", [dict(question="?", context=f"Town {i // 3}.", answers=answers) for i in range(120)])
    data = load(family="qa", train=path, test=path)
    held = {question.context for question in data.validation}
    assert len(held) == 2 and len(data.validation) == 6 and not held & {question.context for question in data.train}
    assert data.counts["test: examples whose text, context or query is in train, too"] == len(data.train) == 114


def test_labels_come_from_training(files):
    data = own(files, TABLE, "text,label\nx,c\nt1,1\n", validation=files.put("valid.csv", "text,label\nv,1\n"))
    assert data.labels == ["0", "1"] and len(data.train) == 9 and data.validation == [Text("v", "1")]
    assert own(files, "text,label\n" + "x,A\ny,O\nz,A\nu,O\n" * 9).labels == ["A", "O"]  # "O" is first of tags only
    with pytest.raises(DataError, match="matthews is only for two labels, but there are 3: 0, 1, eggs"):
        own(files, TABLE + "x,eggs\ny,eggs\nz,eggs\n", metric="accuracy,matthews")
    # Nothing to learn from. Of two labels, one was held out to validate on; and two equal texts cannot be divided.
    for rows in ("", "x,1\ny,1\nz,1\n", "x,1\ny,0\n", "x,1\nx,0\n"):
        with pytest.raises(DataError, match="train.csv: "):
            own(files, "text,label\n" + rows)
    with pytest.raises(DataError, match="test.csv: all examples of test are 3.0"):  # no correlation is defined
        own(files, TABLE, "text,label\nx,3\ny,3\n", metric="pearson")


def test_data_that_are_not_the_same_are_told_apart(files, tmp_path):
    def id_of(data):
        return data_id(data.train, data.validation, *map(dict.items, data.corpora.values()))

    found = [id_of(own(files, TABLE + more)) for more in ("", "new,0\n", "new,1\n", "")]
    for document in "this", "that":
        folders = [files.beir(f"{i}/{document}", 40, 2, documents=[document] * 44) for i in "ab"]
        found += {id_of(load(family="ir", corpus=folder)) for folder in folders}  # one, wherever they are
    assert found[0] == found[3] and len({*found}) == 5 and len(found) == 6


@pytest.mark.parametrize("split", ["validation", "test"])
@pytest.mark.parametrize("case", cases("unknown_labels"))
def test_labels_that_training_does_not_have_are_counted(files, split, case):
    paths = dict.fromkeys(SPLITS, files.put("train.csv", case["train"]))
    paths[split] = files.put("other.csv", case["other"])
    data, n = load(family=case["family"], **paths), sum(case["unknown"].values())
    rule = f"{split}: labels that training does not have, {case['unknown']}"
    assert [line for line in data.summary().split("\n") if "not have" in line] == [f"{rule}: {n}"] * (n > 0)
    assert f"\nexamples: { {part: len(getattr(data, part)) for part in SPLITS} }\n" in data.summary()


@pytest.fixture(scope="module")
def own_folders(tmp_path_factory):
    files = Files(tmp_path_factory.mktemp("own"))
    for name, sizes in dict(all=(20, 3, 4), small=(4, 0, 3), dev=(0, 2, 1)).items():
        files.beir(name, *sizes)
    files.beir("no-dev", train=40, test=3)
    files.beir("equal", train=40, test=3, queries=[f"query {i % 4}" for i in range(43)])
    files.beir("test", test=2, gz=".gz")
    files.put("pairs.jsonl", [{"query": "who", "document": "me"}])
    os.symlink(files.folder / "no-dev", files.folder / "link")  # the same folder by another name
    files.beir("judged", train=20, dev=2, documents=[f"text {i}" * (i != 1) for i in range(30)], test=2)
    files.qrels("judged/qrels/test.tsv", ("q22", "d22", 2), ("q22", "d1", 0), ("q23", "d0", 0))
    unpack("odd_beir.txt", files.folder / "odd")
    return files.folder


@pytest.mark.parametrize("case", cases("own_data"))
def test_what_your_own_data_are_read_as_or_why_they_are_refused(own_folders, monkeypatch, case):
    monkeypatch.chdir(own_folders)
    if "message" in case:
        with pytest.raises(DataError, match=case["message"]):
            load(**case["given"])
        return
    data = load(**case["given"])
    found = {"train": [*map(list, data.train)] if len(data.train) < 3 else len(data.train), "counts": data.counts}
    found |= {"validation": {query.id: query.text for query in data.validation}, "field": data.main["field"]}
    found["test"] = {query.id: query.grades for query in data.test}
    for name, corpus in data.corpora.items():
        found[name] = corpus if len(corpus) < 6 else len(corpus)
    assert found == case["reads"] and all(f"{rule}: {count}" in data.summary() for rule, count in data.counts.items())


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


def write_folder(files, draw):
    """Write a folder at random. Its words are few, so that many scores are equal. Some queries are also documents."""

    def text(most=8):
        return "".join(draw.choices(["a", "ab", "cd", " ", " "], k=draw.randint(0, most)))

    def table(ids, title):
        rows = [{"_id": id, "text": text(), "title": title()} for id in ids]
        rows += [draw.choice(rows) | {"text": text(), "metadata": {"url": "x"}} for _ in range(draw.choice([0, 3]))]
        return "".join(json.dumps(row) + draw.choice(["\n", "\r\n"]) for row in rows)

    ids = [draw.choice(IDS)(i) for i in range(draw.choice([2, 9, 60, 250]))]
    queries = ["", *draw.sample(ids, 2), *(f"q{i}" for i in range(draw.randint(1, 9)))]
    files.put("b/corpus.jsonl", table(ids, lambda: draw.choice([None, text(3)])))
    files.put("b/queries.jsonl", table(queries, text) + '{"_id": "not judged", "text": null}')
    for split in ("train", "dev", "test"):
        out = StringIO()
        writer = csv.writer(out, "excel-tab", quoting=draw.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer.writerows(draw.choice([[], [["query-id", "corpus-id", "score"]], [["a", "b", "c"]]]))
        for query in ["", "", *draw.sample(queries, len(queries) - 1), "gone"]:
            grades = draw.choice([(-1, 0), (0,), (1,), (0, 1, 2, 3)]) if query else (1,)
            for document in [*draw.choices(ids, k=draw.randint(1, 9)), "gone"]:
                writer.writerow([query, document, draw.choice(grades), *["more"] * draw.randint(0, 1)])
        files.put(f"b/qrels/{split}.tsv", out.getvalue())
    return files.folder / "b"


def as_beir(folder, split):
    """Return {id: text} of the documents and of the queries, and {query: {document: grade}}."""
    documents, queries, qrels = {}, {}, defaultdict(dict)
    for row in map(json.loads, open(folder / "corpus.jsonl")):
        documents[str(row["_id"])] = ((row["title"] or "") + " " + row["text"]).strip()
    for row in map(json.loads, open(folder / "queries.jsonl")):
        queries[str(row["_id"])] = row["text"]
    _, *rows = csv.reader(open(folder / f"qrels/{split}.tsv"), delimiter="\t")
    for query, document, grade, *_ in rows:
        if query in queries:  # as BEIR's loader of hub sets and MTEB do; BEIR's other one stops
            qrels[query][document] = int(grade)
    return documents, queries, qrels


def vector(text):
    """A vector of small whole numbers, so that scalar products are exact."""
    return np.array([*map(text.count, "abcd "), text[:1] == " ", text[-1:] == " "], np.float32)


def embed(items):
    return [vector(item.target) for item in items]


@pytest.mark.parametrize("seed", range(24))
def test_a_folder_is_read_and_scored_as_by_beir(tmp_path, seed):
    pytrec_eval = pytest.importorskip("pytrec_eval")
    folder = write_folder(Files(tmp_path), random.Random(seed))
    documents, queries, qrels = as_beir(folder, "test")
    data = load(family="ir", corpus=str(folder))

    def check(found, scores_of):  # scores_of(text): {document: score}, of those that are found
        run = {query: scores_of(queries[query]) for query in qrels}
        for query, scores in run.items():
            scores.pop(query, None)
        expected = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recip_rank", "recall.100"}).evaluate(run)
        for scores in expected.values():
            scores["recip_rank"] *= scores["recip_rank"] > 1 / 10.5  # ours is cut at 10
        for ours, name in (("ndcg@10", "ndcg_cut_10"), ("mrr@10", "recip_rank"), ("recall@100", "recall_100")):
            assert found[ours] == pytest.approx(100 * np.mean([scores[name] for scores in expected.values()]))

    ir, vectors = FAMILIES["ir"](data, TOKENIZER, 64, 0.05, STUDY), np.array([*map(vector, documents.values())])
    for split in (None, "validation", "test"):
        found = score(ir, embed, data.test, split)
    check(found, lambda text: dict(zip(documents, (vectors @ vector(text)).tolist())))
    _, _, train = as_beir(folder, "train")
    expected = [(queries[q], d) for q, grades in train.items() for d, grade in grades.items() if grade > 0]
    assert data.train == [Pair(q, documents[d]) for q, d in expected if d in documents]


def test_judgments_without_a_document_or_a_query_are_scored_as_0_or_refused(tmp_path):
    files, corpus = Files(tmp_path), str(unpack("odd_beir.txt", tmp_path / "b"))
    files.qrels("b/qrels/train.tsv", ("q0", "d0", 0), ("q1", "gone", 1))
    with pytest.raises(DataError, match="train.tsv: no query has a relevant document in the corpus to train on"):
        load(family="ir", corpus=corpus)
    files.qrels("b/qrels/test.tsv", ("q5", "gone", 1))  # no judged document is in the corpus
    data = load(family="ir", corpus=corpus, zero_shot=True)
    ir = FAMILIES["ir"](data, TOKENIZER, 64, 0.05, STUDY)
    assert all({*score(ir, embed, data.test, split).values()} == {0} for split in (None, "test"))
    files.qrels("b/qrels/test.tsv", ("q9", "d0", 1))
    with pytest.raises(DataError, match="test.tsv: judges no query that queries.jsonl has"):
        load(family="ir", corpus=corpus, zero_shot=True)
