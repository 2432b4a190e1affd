"""Each file format, and each fault in a file."""

import configparser
import gzip
import sys
from collections import Counter
from pathlib import Path

import pytest

from errors import DataError
from eval.tasks.readers import Pair, Question, Sentence, Text, find_answer, find_files, read_pairs, read_qrels
from eval.tasks.readers import read_questions, read_sentences, read_texts, read_texts_by_id, to_bio, to_train_on
from eval.tasks.registry import Task
from task_helpers import unpack


def read(reader, path, **fields):
    """Return the examples of a file, and the rules that applied."""
    counts = Counter()
    examples = list(reader(path, Task("sc", **fields), counts))
    return examples, dict(+counts)


def test_a_path_may_be_gzipped_or_a_pattern(files, tmp_path):
    paths = [files.put(f"part-{i}.jsonl", "") for i in (1, 2)] + [files.put("a.jsonl.gz", [{"text": "x", "label": 1}])]
    assert find_files(f"{tmp_path}/part-*.jsonl") == paths[:2] and find_files(f"{tmp_path}/a.jsonl") == paths[2:]
    assert find_files(f"{tmp_path}/no-*.jsonl") == []
    assert read(read_texts, paths[2]) == ([Text("x", "1")], {})
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(DataError, match="a.jsonl.gz: Compressed file ended"):
        read(read_texts, paths[2])


def test_a_file_of_zstandard_needs_pyarrow(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with monkeypatch.context() as patch, pytest.raises(DataError, match="a.jsonl.zst: .*pip install pyarrow"):
        patch.setitem(sys.modules, "pyarrow", None)
        read(read_texts, str(path))
    content = pytest.importorskip("pyarrow").compress(b'{"text": "x", "label": 1}\n', "zstd", asbytes=True)
    path.write_bytes(content)
    assert read(read_texts, str(path)) == ([Text("x", "1")], {})
    path.write_bytes(content[:-5])
    with pytest.raises(DataError, match="a.jsonl.zst: "):
        read(read_texts, str(path))


BY_NUMBER = dict(columns=("2",), label="0")
BY_NAME = dict(columns=("a", "b"), label="kind")
BY_FORM = BY_NAME | dict(form="A: {} B: {}.", names=("no", "yes"))
ROWS = [{"a": "{x}", "b": "y", "kind": 1}, {"a": " ", "b": "", "kind": "other"}]
ASKED = [{"question": "Who?", "context": "It.", "answers": {"text": ["It"], "answer_start": [0]}}]
ASKED += [{"id": 8, "question": "When?", "context": "It.", "answers": {"text": [], "answer_start": []}}]
WITH_ANSWERS = [Question("1", "Who?", "It.", [("It", 0)]), Question("8", "When?", "It.", [])]


def sentences(*tagged):
    return [Sentence(words.split(" "), tags.split()) for words, tags in tagged]


READS = {  # {reader: (name, content, fields of the Task, examples)}
    read_texts: [
        ("a.csv", 'text,label\r\n"a, 1\nb",0\r\n"say ""x""",1\n', {}, [Text("a, 1\nb", "0"), Text('say "x"', "1")]),
        ("a.tsv", 'text\tlabel\r\n"a\t0\r\n\r\nb"\t1\r\n', {}, [Text('"a', "0"), Text('b"', "1")]),
        ("a.tsv", "text\tlabel\na\rb\t0\n", {}, [Text("a\rb", "0")]),
        ("a.txt", "1\t*\tx\n0\t*\ty\n", BY_NUMBER, [Text("x", "1"), Text("y", "0")]),
        ("a.csv", "0,1,2\n1,*,x\n", BY_NUMBER, [Text("x", "1")]),  # here the numbers are names
        ("a.csv", " a,b , kind\nx,y, 1\n", BY_NAME | {"label": "kind "}, [Text("x\ny", " 1")]),  # names are stripped
        ("a.jsonl", ROWS, BY_FORM, [Text("A: {x} B: y.", "yes"), Text("A:   B: .", "other")]),
        ("a.jsonl.gz", ROWS[:1], BY_NAME, [Text("{x}\ny", "1")]),
    ],
    read_sentences: [
        ("x", "\n\na  NN O\r\nb NN B-X\r\n-DOCSTART- -X- O\nc NN O", {}, sentences(("a b", "O B-X"), ("c", "O"))),
        ("x", "a b\tO\n\xa0\tB-X\tme\n", dict(label="1"), [Sentence(["a b", "\xa0"], ["O", "B-X"])]),
        # A number sign may be a word or begin a comment.
        ("x", "# text = # a\n# newdoc\n#\tO\na\tO\n", {}, sentences(("# a", "O O"))),
        ("x", "# O\n1 O\n# newpar O\n\n#tag O\n", {}, sentences(("# 1 #", "O O O"), ("#tag", "O"))),
        ("x", "1 O\n2 O\n\n4 O\n5 O\n\nc O\n", {}, sentences(("1 2", "O O"), ("4 5", "O O"), ("c", "O"))),
    ],
    read_questions: [("a.jsonl", ASKED, {}, WITH_ANSWERS)],
    read_pairs: [("a.tsv", "query\tdocument\nwho\tme\n\tyou\n", {}, [Pair("who", "me"), Pair("", "you")])],
}


@pytest.mark.parametrize("reader, case", [(reader, case) for reader, cases in READS.items() for case in cases])
def test_formats(files, reader, case):
    name, content, fields, examples = case
    assert read(reader, files.put(name, content), **fields) == (examples, {})


def test_ragged_lines_of_a_tsv_are_counted_up_to_one_in_a_hundred(files):
    lines = [f"t{i}\t{i % 2}\n" for i in range(100)]
    text = "text\tlabel\n" + "".join(lines[:7]) + "half a line\n" + "".join(lines[7:])
    texts, counts = read(read_texts, files.put("a.tsv", text))
    assert len(texts) == 100 and counts == {"lines left out, with another number of fields than the first": 1}
    with pytest.raises(DataError, match="b.tsv, line 9: 1 fields, but line 1 has 2; and 1 more"):
        read(read_texts, files.put("b.tsv", text + "a\tb\tc\n"))


SCHEMES = [
    ("I-A I-A O I-A B-A I-B", "B-A I-A O B-A B-A B-B"),  # IOB1
    ("B-A I-A O B-A B-B", "B-A I-A O B-A B-B"),  # BIO
    ("B-A I-A E-A S-A O S-B S-B B-A E-A", "B-A I-A I-A B-A O B-B B-B B-A I-A"),  # BIOES
    ("O I-A I-B E-B I-B E-A S-A I-A", "O B-A B-B I-B B-B B-A B-A B-A"),  # broken
    ("B-X I-X I-A-B I-A", "O O B-A-B B-A"),  # a type that is read as O, and one with a dash
]


@pytest.mark.parametrize("tags, bio", SCHEMES)
def test_every_scheme_becomes_bio(tags, bio):
    assert to_bio(tags.split(), outside=("X",)) == bio.split()
    assert to_bio(bio.split()) == bio.split()


CONTEXT = "Rome, oh Rome, and Rome again"


def columns_of(answers):
    return {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}


QUESTIONS = [
    ("right", "?", [("Rome", 9)] * 2),
    ("other", "?", [("Rome", 11)]),
    ("far", "?", [("Rome", -1)]),
    ("two", "?", [("Rome", 0), ("oh", 6), ("oh", 6)]),
    ("none", "?", [("Oslo", 3)]),
    ("one", "?", [("Oslo", 3), ("oh", 99)]),
    ("empty", " ", []),
]


def test_answers_outside_their_context(files):
    rows = [dict(id=id, question=text, context=CONTEXT, answers=columns_of(answers)) for id, text, answers in QUESTIONS]
    path = files.put("a.jsonl", rows)
    test, _ = read(read_questions, path)
    train = to_train_on(test, counts := Counter())
    answers = {"right": [("Rome", 9)] * 2, "other": [("Rome", 9)], "far": [("Rome", 0)], "one": [("oh", 6)]}
    answers |= {"two": [("Rome", 0), ("oh", 6), ("oh", 6)], "empty": []}
    assert {question.id: question.answers for question in train} == answers
    several = "questions with several answers, of which the first is learned"
    assert +counts == {"questions left out, as no answer is in the context": 1, several: 1}
    answers |= {"none": [("Oslo", -1)], "one": [("Oslo", -1), ("oh", 6)]}
    assert {question.id: question.answers for question in test} == answers


PAIR = "日本のローマ、" + "🙂" * 9 + "そしてローマ。 Rom, Zürich, Rom"
MOVED = [  # an answer in PAIR and what a file may say of its start, and where it starts
    *(("ローマ", start, 3) for start in (3, 2, 4, 0, -1, 9)),  # 9 bytes of UTF-8
    *(("ローマ", start, 19) for start in (19, 18, 20, 28, 66, 10**6)),  # 28 units of UTF-16; 66 bytes
    *(("Rom", start, 37) for start in (37, 36, 38, 46, 93)),
    *(("Rom", start, 24) for start in (79, -3)),  # 79 bytes, but nearer to 37 than to 24
    *((answer, 3, -1) for answer in ("Roma", "Rom ,", "Zu\u0308rich")),  # another form of Unicode, too
]


@pytest.mark.parametrize("answer, start, place", MOVED)
def test_an_answer_is_moved_to_the_nearest_place_that_has_it_and_counted(answer, start, place):
    counts = Counter()
    assert find_answer(answer, start, PAIR, counts) == place
    rule = "answers moved to the nearest place that has them" if place >= 0 else "answers not in their context"
    assert counts == ({} if start == place else {rule: 1})


FAULTS = configparser.ConfigParser(interpolation=None)  # what is wrong with the files of faults.txt
FAULTS.read(Path(__file__).with_name("faults.ini"))
FAULTY = {
    "texts": read_texts,
    "sentences": read_sentences,
    "questions": read_questions,
    "pairs": read_pairs,
    "documents": lambda path, _, counts: read_texts_by_id(path, counts, "{} {}"),
    "judgments": lambda path, _, counts: read_qrels(path, "test", counts),
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The folder of the files that cannot be read."""
    return unpack("faults.txt", tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("file", FAULTS.sections())
def test_a_fault_is_named_with_its_file_and_line(faulty, file):
    fields = dict(FAULTS[file])
    message = fields.pop("message")
    if "columns" in fields:
        fields["columns"] = tuple(fields["columns"].split(","))
    with pytest.raises(DataError, match=f"{file}.*{message}"):
        read(FAULTY[file.partition("/")[0]], str(faulty / file), **fields)


def test_every_faulty_file_is_tried(faulty):
    assert {str(path.relative_to(faulty)) for path in faulty.glob("*/*")} == {*FAULTS.sections()}


def test_forms_and_columns_that_do_not_fit(files):
    table = files.put("a.jsonl", [{"a": "x", "b": "y", "label": 1}])
    for form in ("{}", "{} {} {}", "{a} {b}"):
        with pytest.raises(DataError, match="a, b"):
            read(read_texts, table, form=form, columns=("a", "b"))
    with pytest.raises(DataError, match="b.jsonl, line 2: cannot be read as JSON"):
        read(read_texts, files.put("b.jsonl", '\n{"text": ' + "[" * 100_000))
