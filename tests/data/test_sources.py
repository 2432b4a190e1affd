"""Which documents a source has: formats, errors."""

import gzip
import itertools
import json
import os
import random
import re

import pytest

from data.prepare import prepare
from data.sources import cut_places, find_files, read_file
from errors import DataError
from helpers import ROOT
from prepare_helpers import read_documents, texts, write_texts

TEXT = "First document.\nIts second line.\n\nA second paragraph.\n\n\nSecond document.\n\n\n\n \nThird.\n"
IN_TEXT = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]
CASES = json.loads((ROOT / "tests/data/sources.json").read_text())  # bytes in Latin 1
DOCUMENTS = ["one", "two\n\nlines", "émoji 😀", "four"]


def test_text_documents(tmp_path):
    for text in TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, "\n\n\n" + TEXT.rstrip():
        (tmp_path / "a.txt").write_bytes(text.encode())
        (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
        assert list(read_documents(tmp_path, "text")) == IN_TEXT * 2


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_the_content_decides_and_not_the_name(tmp_path, kind):
    """Empty documents are left out; a field that is missing or has no text is an error."""
    content = write_texts(tmp_path / f"in.{kind}", [*DOCUMENTS, " ", None]).read_bytes()
    for name in "a.txt", "a.jsonl", "a.json", "a.json.gz", "a.parquet", "a", "a.gz", "a.txt.zst":
        path = tmp_path / name / name
        path.parent.mkdir()
        path.write_bytes(content)
        assert list(read_documents(path, "text")) == list(read_documents(path.parent, "text")) == DOCUMENTS
    for field, message in ("body", "no field 'body', only id, text"), ("id", "no string in the field 'id'"):
        with pytest.raises(DataError, match=f"(line|row) 1: {message}"):
            list(read_documents(path, field))


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "jsonl.gz", "parquet"])
def test_the_ranges_of_a_file_have_its_documents(tmp_path, kind, recwarn):
    """Wherever it is cut, with long and short documents, paragraphs, blank lines and byte-order marks in it."""
    rng, path = random.Random(0), tmp_path / f"in.{kind}"
    documents = ["\ufeff" * (i % 3) + "one line\n" * rng.choice([1, 2, 30]) + f"\n\n{i}" for i in range(60)]
    if kind == "txt":
        separators = "\n\n\n", "\r\n\r\n\r\n", "\n\n\n \n\t\n\n"
        documents = [text.replace("\n\n\n", "\n\n") for text in documents]
        path.write_bytes("".join(rng.choice(separators) + text for text in documents).encode())
    else:
        write_texts(path, documents)
    whole = list(read_file(path, "text"))
    assert len(whole) == 60 and sum(text.startswith("\ufeff") for text in whole) == 40
    for size in [1, 2, 7, 10, *range(11, 400, 13), 2000, 10**6]:
        ranges = list(itertools.pairwise(cut_places(path, size)))
        assert [text for start, end in ranges for text in read_file(path, "text", start, end)] == whole
    most = {"jsonl.gz": 1, "parquet": 1}.get(kind, 60)
    assert len(cut_places(path, 1)) - 1 == most and not recwarn.list  # of a file that was left open


def test_a_folder_is_read_in_order_each_file_once_without_linked_folders_and_what_is_left_out_is_said(tmp_path, capsys):
    folder, outside = tmp_path / "in", tmp_path / "outside"
    files = {"in/a.md": "from md", "in/b/1.TXT": "from txt", "in/table.csv": "no,text", "in/e.txt": ""}
    for name, text in (files | {"outside/3.txt": "linked"}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in "b/2.jsonl.gz", "b/2.jsonl":  # of one content
        write_texts(folder / name, ["from jsonl", " \n ", "last"])
    for link, target in ("c", outside), ("d.txt", outside / "3.txt"), ("b/loop", folder), ("z.txt", folder / "a.md"):
        (folder / link).symlink_to(target)
    os.mkfifo(folder / "f.txt")
    assert list(read_documents(folder, "text")) == ["from md", "from txt", "from jsonl", "last", "linked"]
    prepare(folder, tmp_path / "out")
    said = capsys.readouterr().out
    for words in "read: 4", "out: 3, .*loop", "out: 1, .*e.txt", "out: 1, .*csv", "out: 2, .*2.jsonl.gz: the same file":
        assert re.search(words, said) and "drops" not in said


def test_what_is_no_data_is_left_out(tmp_path):
    """Each is no data in a folder, whatever it holds, but for what would be data in any place."""
    content = dict(CASES["about data"])  # what datasets writes beside its files; the Hub has such ones, too
    content |= zip(CASES["no data"], itertools.cycle(["not text", "\0\1\2\3" * 9, "", "{"]))
    for name, text in content.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in CASES["data"]:
        write_texts(tmp_path / name, [name])
    files, left_out = find_files(tmp_path, "text")
    assert [str(path.relative_to(tmp_path)) for path in files] == CASES["data"]
    assert {str(path.relative_to(tmp_path)) for paths in left_out.values() for path in paths} == content.keys()


def test_broken_surrogates_in_json_are_replaced_and_said(tmp_path, capsys):
    lines = ["For validation.", "half \\ud83d pair", "whole \\ud83d\\ude00"]
    (tmp_path / "a.jsonl").write_text("\n\n".join(f'{{"body": "{line}"}}' for line in lines))
    prepare(tmp_path / "a.jsonl", tmp_path / "out", text_field="body", val_fraction=0.3)
    assert texts(tmp_path / "out", "train") == ["half \ufffd pair", "whole 😀"]
    assert r"tokenizer changes or drops: ['\ud83d']" in capsys.readouterr().out


@pytest.mark.parametrize("name, content, message", CASES["bad lines"])
def test_bad_lines(tmp_path, name, content, message):
    content = content.replace("DEEP", "[" * 100_000).encode("latin-1")
    for path, data in (tmp_path / name, content), (tmp_path / f"{name}.gz", gzip.compress(content)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{path.name}, {message}"):
            list(read_documents(path, "text"))


def test_sources_that_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "a.csv").write_text("x")
    for name, message in ("a.csv", "a table. Give .txt"), ("pipe.txt", "no such file .*cannot be read twice"):
        with pytest.raises(DataError, match=message):
            find_files(tmp_path / name, "text")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "a.txt.gz", "a"])
def test_what_is_something_else_is_named(tmp_path, name):
    """With what it is and what to do, before any work; also inside a compression."""
    for content, message in CASES["foreign"]:
        content = content.encode("latin-1")
        for data in content, gzip.compress(content):
            (tmp_path / name).write_bytes(data)
            with pytest.raises(DataError, match=f"{name}, it is .*{message}"):
                find_files(tmp_path / name, "text")


@pytest.mark.parametrize("text", ["GGUF is a format", "BZh is a name", "Rar! said he"])
def test_text_that_begins_like_something_else_is_text(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    assert [*read_file(tmp_path / "a.txt", "text")] == [text]


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_damage_is_an_error(tmp_path, kind):
    """A changed byte or a missing end never leads to fewer or to other documents."""
    rng = random.Random(0)
    path = write_texts(tmp_path / f"in.{kind}", ["".join(rng.choices("abcdefgh ", k=60)) for _ in range(300)])
    content = path.read_bytes()
    damaged = [content[:cut] for cut in rng.sample(range(len(content)), 20)]
    if kind == "jsonl.gz":  # the others have no checksums unless their writer added them
        for i in rng.sample(range(10, len(content)), 20):
            damaged.append(content[:i] + bytes([content[i] ^ 8]) + content[i + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"in\.{kind}, "):
            list(read_documents(path, "text"))
