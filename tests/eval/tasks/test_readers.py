"""Each file format, and each fault in a file."""

import configparser
from collections import Counter
from pathlib import Path

import pytest

from errors import DataError
from eval.tasks.readers import Text, find_answer, find_files, read_pairs, read_qrels
from eval.tasks.readers import read_questions, read_sentences, read_texts, read_texts_by_id, to_bio, to_train_on
from eval.tasks.registry import Task
from task_helpers import cases, parts_of, unpack


def read(reader, path, **fields):
    """Return the examples of a file, and the rules that applied."""
    counts = Counter()
    examples = list(reader(path, Task("sc", **fields), counts))
    return examples, dict(+counts)


def test_a_path_may_be_compressed_or_a_pattern(files, tmp_path):
    paths = [files.put(f"part-{i}.jsonl", "") for i in (1, 2)] + [files.put("a.jsonl.gz", [{"text": "x", "label": 1}])]
    assert find_files(f"{tmp_path}/part-*.jsonl") == paths[:2] and find_files(f"{tmp_path}/a.jsonl") == paths[2:]
    assert [files.put("b.jsonl.zst", "")] == find_files(f"{tmp_path}/b.jsonl")
    assert find_files(f"{tmp_path}/no-*.jsonl") == [] and read(read_texts, paths[2]) == ([Text("x", "1")], {})


FILES = configparser.ConfigParser(interpolation=None)  # what a reader makes of the files in files.txt
FILES.read(Path(__file__).with_name("files.ini"))
READERS = {
    "texts": read_texts,
    "sentences": read_sentences,
    "questions": read_questions,
    "pairs": read_pairs,
    "documents": lambda path, _, counts: read_texts_by_id(path, counts, "{} {}"),
    "judgments": lambda path, _, counts: read_qrels(path, "test", counts),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return unpack("files.txt", tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("file", sorted({*FILES.sections(), *(head.split()[0] for head in parts_of("files.txt"))}))
def test_a_file_is_read_or_its_fault_is_named_with_file_and_line(folder, file):
    fields = dict(FILES[file])
    for name in {"columns", "names"} & fields.keys():
        fields[name] = tuple(fields[name].split(","))
    reader, path = READERS[file.partition("/")[0]], str(folder / file)
    if examples := fields.pop("examples", ""):
        assert str(read(reader, path, **fields)) == f"({examples}, {{}})"
        return
    message = fields.pop("message")
    with pytest.raises(DataError, match=f"{file}.*{message}"):
        read(reader, path, **fields)


def test_ragged_lines_of_a_tsv_are_counted_up_to_one_in_a_hundred_and_so_are_quotes(files):
    lines = ['"a ""b"""\t0\n', '"a" ""b\t1\n'] + [f"t{i}\t{i % 2}\n" for i in range(98)]
    text = "text\tlabel\n" + "".join(lines[:7]) + "half a line\n" + "".join(lines[7:])
    texts, counts = read(read_texts, files.put("a.tsv", text))
    assert len(texts) == 100 and [*counts.values()] == [1, 1] and "with another number of fields" in str(counts)
    with pytest.raises(DataError, match="b.tsv, line 9: 1 fields, but line 1 has 2; and 1 more"):
        read(read_texts, files.put("b.tsv", text + "a\tb\tc\n"))


@pytest.mark.parametrize("case", cases("schemes"))
def test_every_scheme_becomes_bio(case):
    bio = case["bio"].split()
    assert to_bio(case["tags"].split(), outside=("X",)) == to_bio(bio) == bio


def test_answers_outside_their_context(files):
    rows, expected = [], cases("answers")
    for case in expected:
        answers = {key: [answer[i] for answer in case["given"]] for i, key in enumerate(("text", "answer_start"))}
        rows.append(dict(id=case["id"], question="?", context="Rome, oh Rome, and Rome again", answers=answers))
    test, rules = read(read_questions, files.put("a.jsonl", rows))
    train = to_train_on(test, counts := Counter())
    for split, questions in ("test", test), ("train", train):
        found = {question.id: [*map(list, question.answers)] for question in questions}
        assert found == {case["id"]: case[split] for case in expected if case[split] is not None}
    several = "questions with several answers, of which the first is learned"
    assert +counts == {"questions left out, because no answer is in the context": 1, several: 1}
    assert rules["answers without text, which are read as no answer"] == 2


CONTEXT = "日本のローマ、" + "🙂" * 9 + "そしてローマ。 Rom, Zürich, Rom"


@pytest.mark.parametrize("case", cases("moved"))
def test_an_answer_is_moved_to_the_nearest_place_that_has_it_and_counted(case):
    for start in case["starts"]:
        counts, place = Counter(), case["place"]
        assert find_answer(case["answer"], start, CONTEXT, counts) == place
        rule = "answers moved to the nearest place that has them" if place >= 0 else "answers not in their context"
        assert counts == ({} if start == place else {rule: 1})
