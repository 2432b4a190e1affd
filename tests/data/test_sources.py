"""Which documents a source has: formats, errors."""

import gzip
import hashlib
import itertools
import json
import os
import random
import sys

import pytest

from data.prepare import prepare
from data.sources import EMBEDDED, cut_places, find_files, read_file
from errors import DataError
from prepare_helpers import compress, read_documents, texts, write_texts

TEXT = "First document.\nIts second line.\n\nA second paragraph.\n\n\nSecond document.\n\n\n\n \nThird.\n"
IN_TEXT = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]
DOCUMENTS = ["one", "two\n\nlines", "émoji 😀", "four"]


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, "\n\n\n" + TEXT.rstrip()])
def test_text_documents(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert list(read_documents(tmp_path, "text")) == IN_TEXT * 2


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "json.gz", "jsonl.zst", "parquet", "arrow"])
def test_records(tmp_path, kind):
    """Empty documents are left out; a field that is missing or has no text is an error."""
    source = write_texts(tmp_path / f"in.{kind}", [*DOCUMENTS, " ", None])
    assert list(read_documents(source, "text")) == DOCUMENTS
    for field, message in ("body", "no field 'body', only id, text"), ("id", "no string in the field 'id'"):
        with pytest.raises(DataError, match=f"(line|row) 1: {message}"):
            list(read_documents(source, field))


@pytest.mark.parametrize("kind", ["txt", "jsonl", "json", "jsonl.gz", "parquet", "arrow"])
def test_the_ranges_of_a_file_have_its_documents(tmp_path, kind):
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
    assert len(whole) == 60
    for size in [1, 2, 7, 10, *range(11, 400, 13), 2000, 10**6]:
        ranges = list(itertools.pairwise(cut_places(path, size)))
        assert [text for start, end in ranges for text in read_file(path, "text", start, end)] == whole
    most = {"jsonl.gz": 1, "arrow": 1, "parquet": 2}.get(kind, 60)
    assert len(cut_places(path, 1)) - 1 == most


def test_a_folder_is_read_in_order(tmp_path, capsys):
    """Links to files are followed, links to folders are not; what is not read is reported."""
    folder, outside = tmp_path / "in", tmp_path / "outside"
    for path in folder / "b", outside:
        path.mkdir(parents=True)
    write_texts(folder / "b" / "2.jsonl.gz", ["from jsonl", " \n ", "last"])
    (folder / "a.md").write_text("from md")
    (folder / "b" / "1.TXT").write_text("from txt")
    (folder / "table.csv").write_text("no,text")
    (outside / "val").write_text("a named file needs no extension")
    (outside / "3.txt").write_text("linked")
    (folder / "c").symlink_to(outside)
    (folder / "d.txt").symlink_to(outside / "3.txt")
    (folder / "b" / "loop").symlink_to(folder)
    os.mkfifo(folder / "f.txt")
    assert list(read_documents(folder, "text")) == ["from md", "from txt", "from jsonl", "last", "linked"]
    assert list(read_documents(outside / "val", "text")) == ["a named file needs no extension"]
    prepare(folder, tmp_path / "out")
    assert f"in: 4 files or links are ignored, such as {folder / 'b' / 'loop'}" in capsys.readouterr().out


def test_dumps_of_the_hub(tmp_path):
    """As C4's and the Pile's files, and datasets.save_to_disk. The .json files about the data are no text."""
    rows = {
        "c4/en/c4-train.00000-of-01024.json.gz": [{"text": "one", "timestamp": "2019", "url": "x"}, {"text": "two"}],
        "pile/00.jsonl.zst": [{"text": "three", "meta": {"pile_set_name": "Github"}}],
    }
    for name, records in rows.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        lines = "".join(json.dumps(record) + "\n" for record in records).encode()
        path.write_bytes(compress(path, lines))
    (tmp_path / "saved/train").mkdir(parents=True)
    write_texts(tmp_path / "saved/train/data-00000-of-00001.arrow", ["four", "five"])
    (tmp_path / "saved/dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "saved/train/state.json").write_text(json.dumps({"_data_files": [], "text": None}, indent=2))
    prepare(tmp_path, tmp_path.with_name("out"), val_fraction=0.01)
    found = [*texts(tmp_path.with_name("out"), "train"), *texts(tmp_path.with_name("out"), "val")]
    assert "".join(found) == "onetwothreefourfive"
    assert [path.name for path in find_files(tmp_path, "text")[1]] == ["dataset_dict.json", "state.json"]


def test_broken_surrogates_in_json(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"body": "For validation."}\n{"body": "half \\ud83d pair"}\n\n{"body": "whole \\ud83d\\ude00"}\n'
    )
    prepare(tmp_path / "a.jsonl", tmp_path / "out", text_field="body", val_fraction=0.3)
    assert texts(tmp_path / "out", "train") == ["half \ufffd pair", "whole 😀"]


def test_the_embedded_text():
    """It is what data/embedded/README.md says, to the byte."""
    digest = hashlib.sha256(gzip.decompress(EMBEDDED.read_bytes())).hexdigest()
    assert digest in (EMBEDDED.parent / "README.md").read_text()
    documents = list(read_documents("embedded", "text"))
    assert len(documents) == len(set(documents)) == 533


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"one\n\n\ntwo\nth\xffree\n", "line 5: byte 0xff is not UTF-8"),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2: cannot be read as JSON: .* column 10"),
    ("a.jsonl", b"[" * 100_000, "line 1: cannot be read as JSON"),
    ("a.jsonl", b'["x"]', "line 1: expected a JSON object, got a list"),
    ("a.jsonl", b'{"text": "\xff"}', "line 1: byte 0xff is not UTF-8"),
])  # fmt: skip
def test_bad_lines(tmp_path, name, content, message):
    for path, data in (tmp_path / name, content), (tmp_path / f"{name}.gz", gzip.compress(content)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{path.name}, {message}"):
            list(read_documents(path, "text"))
        with pytest.raises(DataError, match=f"{path.name}, {message}"):
            for start, end in itertools.pairwise(cut_places(path, 1)):
                list(read_file(path, "text", start, end))


def test_sources_that_cannot_be_read(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    os.mkfifo(tmp_path / "pipe.txt")
    for name in "a.csv", "a.parquet", "a.jsonl.zst", "a.arrow":
        (tmp_path / name).write_bytes(b"x")
    for name, message in {
        "a.csv": "none can be read, only .txt",
        "a.parquet": "pip install pyarrow",
        "a.jsonl.zst": "pip install pyarrow",
        "a.arrow": "pip install pyarrow",
        "pipe.txt": "cannot be read twice",
        "gone.txt": "no such file or folder",
    }.items():
        with pytest.raises(DataError, match=message):
            find_files(tmp_path / name, "text")


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet", "arrow"])
def test_damage_is_an_error(tmp_path, kind):
    """A changed byte or a missing end never leads to fewer or to other documents."""
    rng = random.Random(0)
    path = write_texts(tmp_path / f"in.{kind}", ["".join(rng.choices("abcdefgh ", k=60)) for _ in range(300)])
    content = path.read_bytes()
    cuts = [*rng.sample(range(len(content)), 20), len(content) - 8]  # the last: .arrow's mark of its end
    damaged = [content[:cut] for cut in cuts]
    if kind == "jsonl.gz":  # the others have no checksums unless their writer added them
        for i in rng.sample(range(10, len(content)), 20):
            damaged.append(content[:i] + bytes([content[i] ^ 8]) + content[i + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"in\.{kind}, "):
            list(read_documents(path, "text"))
