"""Each file format, and each fault in a file."""

import gzip
from collections import Counter

import pytest

from errors import DataError
from eval.tasks.examples import Pair, Question, Sentence, Text
from eval.tasks.readers import (
    conll_sentences,
    find_files,
    lines,
    read_pairs,
    read_qrels,
    read_questions,
    read_sentences,
    read_texts,
    read_texts_by_id,
    to_bio,
)
from eval.tasks.registry import Task


def read(reader, path, split="test", **fields):
    """Return the examples of a file, and the rules that applied."""
    counts = Counter()
    examples = list(reader(path, Task("sc", **fields), split, counts))
    return examples, dict(+counts)


def test_a_path_may_be_gzipped_or_a_pattern(files, tmp_path):
    paths = [files.put(f"part-{i}.jsonl", "") for i in (1, 2)] + [files.put("a.jsonl.gz", [{"text": "x", "label": 1}])]
    assert find_files(f"{tmp_path}/part-*.jsonl") == paths[:2] and find_files(f"{tmp_path}/a.jsonl") == paths[2:]
    assert find_files(f"{tmp_path}/no-*.jsonl") == [] and find_files("hf:me/data:train") == ["hf:me/data:train"]
    assert read(read_texts, paths[2]) == ([Text("x", "1")], {})
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(DataError, match="a.jsonl.gz: Compressed file ended"):
        read(read_texts, paths[2])


@pytest.mark.parametrize("end", ["\r", "\r\n"])
def test_lines_may_end_as_on_other_systems(files, end):
    path = files.put("a.csv", f"text,label{end}x,1{end}y,0{end}")
    assert read(read_texts, path)[0] == [Text("x", "1"), Text("y", "0")]
    path = files.put("a.conll", f"a O{end}b O{end}{end}c O")
    assert [words for _, words, _ in conll_sentences(path)] == [["a", "b"], ["c"]]


@pytest.mark.parametrize("first, number", [("", 1), ("a\nb\n", 3)])
def test_a_compressed_line_that_does_not_fit_into_memory_is_refused(files, first, number):
    path = files.put("a.jsonl.gz", first + " " * 1000 + "\n")
    with pytest.raises(DataError, match=f"a.jsonl.gz, line {number}: has 100 bytes or more"):
        list(lines(path, max_bytes=100))
    assert len(list(lines(path))) == number


# ----------------------------------------------------------------------------
# Tables


def test_csv_is_quoted_and_tsv_is_not(files):
    path = files.put("a.csv", 'text,label\n"a, 1\nb",0\n"say ""x""",1\n')
    assert read(read_texts, path)[0] == [Text("a, 1\nb", "0"), Text('say "x"', "1")]
    path = files.put("a.tsv", 'text\tlabel\r\n"a\t0\r\n\r\nb"\t1\r\n')
    assert read(read_texts, path)[0] == [Text('"a', "0"), Text('b"', "1")]


def test_columns_of_a_table_without_a_header_have_numbers(files):
    fields = dict(columns=("2",), label="0")
    for name in ("a.tsv", "a.txt"):
        path = files.put(name, "1\t*\tx\n0\t*\ty\nno\n" + "0\t\tz\n" * 98)
        texts, counts = read(read_texts, path, **fields)
        assert texts[:2] == [Text("x", "1"), Text("y", "0")] and [*counts.values()] == [1]
    table = "0,1,2\n1,*,x\n"  # here the numbers are names
    assert read(read_texts, files.put("a.csv", table), **fields)[0] == [Text("x", "1")]
    with pytest.raises(DataError, match="b.tsv, line 1: no column 2; the columns are 0, 1"):
        read(read_texts, files.put("b.tsv", "1\tx\n0\ty\n"), **fields)


def test_columns_form_and_names(files):
    path = files.put("a.jsonl", [{"a": "{x}", "b": "y", "kind": 1}, {"a": " ", "b": "", "kind": "other"}])
    fields = dict(columns=("a", "b"), label="kind")
    texts, counts = read(read_texts, path, form="A: {} B: {}.", names=("no", "yes"), **fields)
    assert texts == [Text("A: {x} B: y.", "yes"), Text("A:   B: .", "other")] and counts == {"empty texts": 1}
    assert read(read_texts, path, **fields)[0][0] == Text("{x}\ny", "1")
    for form in ("{}", "{} {} {}", "{a} {b}"):
        with pytest.raises(DataError, match="needs one {} for each of the columns a, b"):
            read(read_texts, path, form=form, **fields)


def test_numbers_to_predict(files):
    path = files.put("a.csv", "text,label\nx,3\ny,-0.5\n")
    assert read(read_texts, path, metric="spearman,pearson")[0] == [Text("x", 3.0), Text("y", -0.5)]
    for label in ("", "three", "nan", "1e999"):
        with pytest.raises(DataError, match="line 2: the label is .*, expected a number, as metric=pearson needs"):
            read(read_texts, files.put("a.csv", f"text,label\nx,{label}\n"), metric="pearson")


def test_ragged_lines_of_a_tsv_are_counted_up_to_one_in_a_hundred(files):
    lines = [f"t{i}\t{i % 2}\n" for i in range(100)]
    text = "text\tlabel\n" + "".join(lines[:7]) + "half a line\n" + "".join(lines[7:])
    texts, counts = read(read_texts, files.put("a.tsv", text))
    assert len(texts) == 100 and counts == {"lines left out, with another number of fields than the first": 1}
    with pytest.raises(DataError, match="b.tsv, line 9: 1 fields, but line 1 has 2; and 1 more"):
        read(read_texts, files.put("b.tsv", text + "a\tb\tc\n"))


TABLE_FAULTS = [
    ("a.csv", "sentence,label\nx,1\n", "line 1: no column text; the columns are sentence, label"),
    ("a.csv", "text,label\nx,1\ny\n", "line 3: 1 fields, but line 1 has 2"),
    ("a.csv", 'text,label\n"x"y,1\n', "line 2: "),
    ("a.csv", "text,label\nx,\n", "line 2: the label is '', expected one class"),
    ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"', "line 2: not JSON"),
    ("a.jsonl", "[1]", "line 1: expected a JSON object, got a list"),
    ("a.jsonl", '{"text": 5, "label": 1}', "line 1: text is 5, expected str"),
    ("a.jsonl", '{"text": "x", "label": ["a", "b"]}', "line 1: the label is .*several are not"),
    ("a.jsonl", '{"text": "x", "label": true}', "line 1: the label is True, expected one class"),
    ("a.jsonl", '{"text": "x", "label": 0.5}', "line 1: the label is 0.5.*to predict numbers, metric=pearson"),
    ("a.jsonl", '\n{"text": ' + "[" * 100_000, "line 2: not JSON: .*recursion"),
    ("a.jsonl", '\n{"text": ' + "1" * 5000 + "}", "line 2: not JSON: .*digits"),
    ("a.csv", "text,label,text\nx,1,y\n", "line 1: two columns have the same name: text, label, text"),
    ("a.csv", "a film,1\nb,0\n", "line 1: no column text; .* Without a header, give their numbers, from 0"),
    ("a.xml", "", "a table is a .tsv, .txt, .csv or .jsonl file"),
]


@pytest.mark.parametrize("name, content, message", TABLE_FAULTS)
def test_faults_of_a_table(files, name, content, message):
    with pytest.raises(DataError, match=f"{name}.*{message}"):
        read(read_texts, files.put(name, content))


# ----------------------------------------------------------------------------
# Words and tags

SCHEMES = [
    ("I-A I-A O I-A B-A I-B", "B-A I-A O B-A B-A B-B"),  # IOB1
    ("B-A I-A O B-A B-B", "B-A I-A O B-A B-B"),  # BIO
    ("B-A I-A E-A S-A O S-B S-B B-A E-A", "B-A I-A I-A B-A O B-B B-B B-A I-A"),  # BIOES
    ("B-A I-A L-A U-A", "B-A I-A I-A B-A"),  # BILOU
    ("O I-A I-B E-B I-B E-A S-A I-A", "O B-A B-B I-B B-B B-A B-A B-A"),  # broken
    ("B-X I-X I-A-B I-A", "O O B-A-B B-A"),  # a type that is read as O, and one with a dash
]


@pytest.mark.parametrize("tags, bio", SCHEMES)
def test_every_scheme_becomes_bio(tags, bio):
    assert to_bio(tags.split(), outside=("X",)) == bio.split()
    assert to_bio(bio.split()) == bio.split()


CONLL = [  # the formats of the declared data sets are in test_registry.py
    ("\n\na  NN O\r\nb NN B-X\r\n-DOCSTART- -X- O\nc NN O", {}, [("a b", "O B-X"), ("c", "O")]),
    ("1\ta b\tO\n2\t\xa0\tB-X\t-\tme\n", dict(word=1, tag=2), [("a b \xa0", "O B-X")]),
    # A number sign may be a word or begin a comment.
    ("# text = # a\n# newdoc\n#\tO\na\tO\n", {}, [("# a", "O O")]),
    ("# O\n1 O\n\n#begin document (x); part 000\n#tag NN\n", {}, [("# 1", "O O"), ("#tag", "NN")]),
]


@pytest.mark.parametrize("text, columns, sentences", CONLL)
def test_conll_columns(files, text, columns, sentences):
    found = [(" ".join(words), " ".join(tags)) for _, words, tags in conll_sentences(files.put("x", text), **columns)]
    assert found == sentences


CONLL_FAULTS = [
    ("a O\nb\n", "line 2: 1 columns, expected 2: 'b'"),
    ("a NN O\nb NN\n", "line 2: 2 columns, expected 3: 'b NN'"),
    (b"a\tO\n\xff\tO\n", "line 2: byte 0xff is not UTF-8"),
    ("a\tO\n\nb\tO\nc\tNOUN\n", "sentence of line 3: the tag 'NOUN' is not O or B-, I-, E- or S- and a type"),
]


@pytest.mark.parametrize("text, message", CONLL_FAULTS)
def test_faults_of_conll_columns(files, text, message):
    with pytest.raises(DataError, match=f"x.conll, {message}"):
        read(read_sentences, files.put("x.conll", text))


def test_tags_from_json_lines(files):
    rows = [{"tokens": ["a", "b"], "label": ["O", "I-X"]}, {"tokens": [], "label": []}]
    sentences, counts = read(read_sentences, files.put("a.jsonl", rows))
    assert sentences == [Sentence(["a", "b"], ["O", "B-X"])]
    assert counts == {"tags rewritten as BIO": 1, "sentences without a word, left out": 1}
    for row in ({"tokens": ["a"], "label": []}, {"tokens": [7], "label": ["O"]}, {"tokens": "a", "label": "O"}):
        with pytest.raises(DataError, match="b.jsonl, line 1: (tokens is .*)?expected"):
            read(read_sentences, files.put("b.jsonl", [row]))
    for text, fields in (
        ("a O\n", dict(columns=("word",))),
        ("a O\n", dict(label="-9")),
        ("1 a O\n2 b O\n\n1 c O\n", dict(label="2")),  # the words are in column 1
    ):
        with pytest.raises(DataError, match="x.conll"):
            read(read_sentences, files.put("x.conll", text), **fields)
    assert len(read(read_sentences, files.put("x.conll", "1 O\n2 O\n\n4 O\n5 O\n\nc O\n"))[0]) == 3


# ----------------------------------------------------------------------------
# Questions

CONTEXT = "Rome, oh Rome, and Rome again"
QUESTIONS = [
    ("right", "?", [("Rome", 9)]),
    ("near", "?", [("Rome", 11)]),
    ("far", "?", [("Rome", -1)]),
    ("none", "?", [("Oslo", 3)]),
    ("one", "?", [("Oslo", 3), ("oh", 99)]),
    ("empty", " ", []),
]


def test_answers_outside_their_context(files):
    path = files.squad("a.json", (CONTEXT, QUESTIONS))
    moved = {"answers moved to the nearest place that has their text": 3, "empty questions or contexts": 1}
    train, counts = read(read_questions, path, "train")
    answers = {"right": [("Rome", 9)], "near": [("Rome", 9)], "far": [("Rome", 0)], "one": [("oh", 6)], "empty": []}
    assert {question.id: question.answers for question in train} == answers
    rules = ("questions left out, as no answer is in the context", "answers left out that are not in the context")
    assert counts == moved | dict.fromkeys(rules, 1)
    test, counts = read(read_questions, path, "test")
    answers |= {"none": [("Oslo", -1)], "one": [("Oslo", -1), ("oh", 6)]}
    assert {question.id: question.answers for question in test} == answers
    assert counts == moved | {"answers kept that are not in the context": 2}


def test_an_impossible_question_has_no_answers_whatever_the_file_suggests(files):
    qa = {"id": "x", "question": "Where?", "is_impossible": True, "answers": [{"text": "Rome", "answer_start": 3}]}
    path = files.put("a.json", {"data": [{"paragraphs": [{"context": "In Rome.", "qas": [qa]}]}]})
    assert read(read_questions, path)[0] == [Question("x", "Where?", "In Rome.", [])]


def test_questions_from_json_lines(files):
    row = {"question": "Where?", "context": "In Rome.", "answers": {"text": ["Rome"], "answer_start": [3]}}
    path = files.put("a.jsonl", [row, {**row, "id": 8, "answers": {"text": [], "answer_start": []}}])
    expected = [Question("1", "Where?", "In Rome.", [("Rome", 3)]), Question("8", "Where?", "In Rome.", [])]
    assert read(read_questions, path) == (expected, {})
    starts = ([None], [], [float("inf")])
    for wrong in (*({"text": ["Rome"], "answer_start": start} for start in starts), ["Rome"]):
        with pytest.raises(DataError, match="b.jsonl, line 1: .*expected"):
            read(read_questions, files.put("b.jsonl", [{**row, "answers": wrong}]))


def squad_layout(**qa):
    return {"paragraphs": [{"context": "x", "qas": [{"id": "1", "answers": [], **qa}]}]}


SQUAD_FAULTS = [
    ('{"data": [\n{"paragraphs": [}\n]}', ", line 2: not JSON"),
    ("[1, 2]", ": not in SQuAD's layout: expected {.data"),
    ({"data": 5}, ": not in SQuAD's layout: expected {.data"),
    ({"data": [squad_layout()]}, ", article 1: not in SQuAD's layout .there is no 'question'.: expected"),
    (
        {"data": [squad_layout(question="?", answers=[{"text": "x", "answer_start": float("inf")}])]},
        ", article 1: not in SQuAD's layout",
    ),
    ({"data": [squad_layout(question=None)]}, ", article 1: the question, context and answers must be text"),
    ({"data": [squad_layout(question="?")] * 2}, ", article 2: the id '1' for the second time"),
]


@pytest.mark.parametrize("content, message", SQUAD_FAULTS)
def test_faults_of_a_squad_file(files, content, message):
    with pytest.raises(DataError, match=f"a.json{message}"):
        read(read_questions, files.put("a.json", content))


# ----------------------------------------------------------------------------
# Retrieval


def test_pairs(files):
    table = files.put("pairs.tsv", "q\td\nwho\tme\n\tyou\n")
    expected = [Pair("who", "me"), Pair("", "you")], {"empty queries or documents": 1}
    assert read(read_pairs, table, columns=("q", "d")) == expected
    path = files.squad("squad.json", ("In Rome.", [("x", "Where?", [("Rome", 3)]), ("y", "When?", [])]))
    expected = [Pair("Where?", "In Rome.")], {"questions left out, as they have no answer": 1}
    assert read(read_pairs, path) == expected
    with pytest.raises(DataError, match="pairs.tsv, line 1: no column query; the columns are q, d"):
        read(read_pairs, table)
    with pytest.raises(DataError, match=r"columns=\('q',\): pairs have two"):
        read(read_pairs, table, columns=("q",))


def test_a_corpus_is_read_with_only_the_wanted_documents_in_memory(files):
    path = files.put("corpus.jsonl", [{"_id": f"d{i}", "title": "A", "text": f"text {i}"} for i in range(100)])
    assert read_texts_by_id(path, {"d3", "d99"}) == {"d3": "A text 3", "d99": "A text 99"}
    for wrong in ({"docid": 1, "text": "x"}, {"text": "y"}, {"_id": None, "text": "y"}):
        rows = [{"docid": 1, "text": "x"}, wrong]
        with pytest.raises(DataError, match='a.jsonl, line 2: expected an "_id"'):
            read_texts_by_id(files.put("a.jsonl", rows))


MLDR = {"query_id": "q", "query": "?", "positive_passages": [{"docid": "d"}]}
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS_FAULTS = [
    ("a.tsv", HEADER + "q3\td3\t1\nq3\td3\t2\n", "line 3: another grade for query 'q3' and document 'd3'"),
    ("a.tsv", HEADER + "q3\td3\tyes\n", "line 2: the score 'yes' is not a whole number"),
    ("a.tsv", "q3\td3\t1\nq4\td4\t1\n", "line 1: .*query-id\tcorpus-id\tscore"),
    ("a.tsv", "q3\t0\td3\t1\nq4\t0\td4\t1\n", "line 1: no column query-id"),
    ("a.tsv", HEADER + "q3 d3 1\n", "line 2: 1 fields, but line 1 has 3"),
    ("a.jsonl", [MLDR, MLDR], "line 2: the id 'q' for the second time"),
    ("a.jsonl", [{**MLDR, "positive_passages": ["d"]}], 'line 1: a passage without "docid"'),
    ("a.jsonl", [{**MLDR, "positive_passages": None}], "line 1: positive_passages is None"),
    ("a.jsonl", [{**MLDR, "query": None}], "line 1: query is None"),
]


@pytest.mark.parametrize("name, content, message", QRELS_FAULTS)
def test_faults_of_judgments(files, name, content, message):
    with pytest.raises(DataError, match=f"{name}, {message}"):
        read_qrels(files.put(name, content))
