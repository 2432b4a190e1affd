"""Retrieval folders with the oddities that BEIR's loader accepts: read, scored and trained on as by BEIR."""

import csv
import json
import random
from collections import defaultdict
from io import StringIO

import numpy as np
import pytest
from task_helpers import TOKENIZER, Files, load, score, unpack

from errors import DataError
from eval.tasks.baselines import baselines, bm25
from eval.tasks.families import FAMILIES
from eval.tasks.metrics import best
from eval.tasks.readers import Pair
from eval.tasks.retriever import STUDY

IDS = "d{}".format, "{:03}".format, "a b {}".format, "é{}".format, 'in "{}"'.format, "'{}'".format, "{}".format, int


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
    pytest.importorskip("bm25s")
    pytrec_eval = pytest.importorskip("pytrec_eval")
    folder = write_folder(Files(tmp_path), random.Random(seed))
    documents, queries, qrels = as_beir(folder, "test")
    data = load(family="ir", corpus=str(folder))

    def check(found, scores_of):
        """scores_of(text): {document: score}, of those that are found."""
        run = {query: scores_of(queries[query]) for query in qrels}
        for query, scores in run.items():
            scores.pop(query, None)
        expected = pytrec_eval.RelevanceEvaluator(qrels, {"ndcg_cut.10", "recall.100"}).evaluate(run).values()
        for ours, name in (("ndcg@10", "ndcg_cut_10"), ("recall@100", "recall_100")):
            assert found[ours] == pytest.approx(100 * np.mean([scores[name] for scores in expected]))

    ir, vectors = FAMILIES["ir"](data, TOKENIZER, 64, 0.05, STUDY), np.array([*map(vector, documents.values())])
    for split in (None, "validation", "test"):
        found = score(ir, embed, data.test, split)
    check(found, lambda text: dict(zip(documents, (vectors @ vector(text)).tolist())))
    check(baselines(data)["bm25"], lambda text: bm25([text], documents)[0])

    _, _, train = as_beir(folder, "train")
    expected = [(queries[q], d) for q, grades in train.items() for d, grade in grades.items() if grade > 0]
    assert data.train == [Pair(q, documents[d]) for q, d in expected if d in documents]


def test_what_is_left_out_is_counted(tmp_path):
    folder = unpack("odd_beir.txt", tmp_path / "b")
    data = load(family="ir", corpus=str(folder))
    assert data.train == [Pair(" 0", "new"), Pair(" 2", "seven")]
    assert [(query.id, query.text, query.grades) for query in data.test] == [("q5", " 5", {"7": 0})]
    assert data.corpora == {f"{folder}/corpus.jsonl": {"d0": "new", "q5": "own", "7": "seven"}}
    assert data.counts == {
        "train: judgments left out, as a later line has the same ids": 1,
        "test: judgments left out, as BEIR takes the first line for a header": 1,
        "test: queries left out, as queries.jsonl lacks their text": 2,
        "lines left out, as a later one has the same _id": 1,
        "judged documents that are not in the corpus": 3,  # "gone", and two that are judged for validation
        "queries with the id of a document, which is left out of their results": 1,
    }
    assert all(f"{rule}: {count}" in data.summary() for rule, count in data.counts.items())


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
    with pytest.raises(DataError, match="test.tsv: there are no judgments in it of queries that queries.jsonl has"):
        load(family="ir", corpus=corpus, zero_shot=True)


def test_of_documents_of_equal_score_the_last_ids_are_found_also_at_rank_100():
    ids, scores = [f"{i:04}" for i in range(999)], np.zeros(999, np.float32)
    scores[[5, 77]] = 1, 2
    assert [*best(scores, ids)] == ["0077", "0005", *ids[:-100:-1]]
