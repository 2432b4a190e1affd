"""Which documents a source has: formats, limits, errors."""

import gzip
import hashlib
import json
import os
import random
import sys
import types

import pytest

from data import sources
from data.prepare import prepare
from data.sources import EMBEDDED, find_files, read_documents, read_file
from errors import DataError
from prepare_helpers import texts, write_jsonl

TEXT = "First document.\nIts second line.\n\nA second paragraph.\n\n\nSecond document.\n\n\n\n \nThird.\n"
IN_TEXT = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]
DOCUMENTS = ["one", "two\n\nlines", "émoji 😀", "four"]
RECORDS = [{"text": text, "score": i / 4} for i, text in enumerate(DOCUMENTS)]
ZSTD = "backports.zstd" if sys.version_info < (3, 14) else "compression.zstd"
KINDS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "hub"]


def write_source(folder, kind, records):
    """Write records in a format and return them as a source."""
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    path = folder / f"in.{kind}"
    if kind == "hub":
        return f"hf:{folder.name}/{len(records)}:config:train"  # a name of its own, because the data set is cached
    if kind == "txt":
        path.write_text("\n\n\n".join(record["text"] for record in records))
    elif kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(records), path, row_group_size=max(3, len(records) // 2))
    elif kind == "jsonl.zst":
        zstd = pytest.importorskip(ZSTD)
        path.write_bytes(zstd.compress(lines[:70]) + zstd.compress(lines[70:]))  # two frames, as parallel writers do
    else:
        path.write_bytes(gzip.compress(lines, 1) if kind == "jsonl.gz" else lines)
    return path


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """Stand in for the datasets package: a data set of two files, made of the records that a test adds."""
    records = []

    class Dataset:
        num_shards = 2

        def shard(self, count, index):
            assert count == self.num_shards
            return records[index * len(records) // 2 : (index + 1) * len(records) // 2]

    def load_dataset(name, config, split, streaming):
        if name == "nobody/nothing":
            raise FileNotFoundError(f"Dataset {name!r} doesn't exist on the Hub")
        assert (config, split, streaming) == ("config", "train", True)
        return Dataset()

    sources.hub_dataset.cache_clear()
    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
    return records


# ---------------------------------------------------------------------------------------------------------------------
# Formats


@pytest.mark.parametrize("text", [TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, "\n\n\n" + TEXT.rstrip()])
def test_text_documents(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(text.encode()))
    assert list(read_documents(tmp_path, "text")) == IN_TEXT * 2


@pytest.mark.parametrize("kind", KINDS)
def test_formats(tmp_path, hub, kind):
    records = [*RECORDS, {**RECORDS[0], "text": " "}, {**RECORDS[0], "text": None}]
    hub += records
    val = write_jsonl(tmp_path / "val.jsonl", ["for validation"])
    source = write_source(tmp_path, kind, records)
    meta = prepare(source, tmp_path / "all", val_source=val, workers=1, progress=False)
    assert texts(tmp_path / "all", "train") == DOCUMENTS and texts(tmp_path / "all", "val") == ["for validation"]
    assert (meta["skipped_empty"], meta["skipped_too_long"]) == (2, 0)


def test_folder_is_read_in_order(tmp_path, capsys):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    write_jsonl(folder / "b" / "2.jsonl.gz", ["from jsonl", " \n ", "last"])
    (folder / "a.md").write_text("from md")
    (folder / "b" / "1.TXT").write_text("from txt")
    (folder / "table.csv").write_text("no,text")
    (tmp_path / "val").write_text("a named file needs no extension")
    prepare(folder, tmp_path / "out", val_source=tmp_path / "val", progress=False)
    assert texts(tmp_path / "out", "train") == ["from md", "from txt", "from jsonl", "last"]
    assert texts(tmp_path / "out", "val") == ["a named file needs no extension"]
    assert "table.csv" in capsys.readouterr().out


def test_broken_surrogates_in_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "half \\ud83d pair"}\n\n{"body": "whole \\ud83d\\ude00"}\n')
    val = write_jsonl(tmp_path / "v.jsonl", ["x"], "body")
    prepare(tmp_path / "a.jsonl", tmp_path / "out", val_source=val, text_field="body", progress=False)
    assert texts(tmp_path / "out", "train") == ["half \ufffd pair", "whole 😀"]


def test_the_embedded_text():
    """It is what data/embedded/README.md says, to the byte."""
    digest = hashlib.sha256(gzip.decompress(EMBEDDED.read_bytes())).hexdigest()
    assert digest in (EMBEDDED.parent / "README.md").read_text()
    documents = list(read_documents("embedded", "text"))
    assert len(documents) == len(set(documents)) == 533


# ---------------------------------------------------------------------------------------------------------------------
# Bad input: what is wrong, with the file and the line or row


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"one\n\n\ntwo\nth\xffree\n", "line 5: byte 0xff is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "line 2: cannot be read as JSON: .* column 10"),
        ("a.jsonl", b"{}\n" + b"[" * 100_000, "line 1: no field 'text'"),
        ("a.jsonl", b'{"text": 1.5}', "line 1: no string in the field 'text' but 1.5"),
        ("a.jsonl", b'{"body": "", "id": 3}', "line 1: no field 'text', only body, id"),
        ("a.jsonl", b"[" * 100_000, "line 1: cannot be read as JSON"),
        ("a.jsonl", b'{"n": ' + b"7" * 5_000 + b"}", "line 1: cannot be read as JSON"),
        ("a.jsonl", b'["x"]', "line 1: expected a JSON object, got a list"),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: byte 0xff is not UTF-8"),
    ],
)
def test_bad_lines(tmp_path, name, content, message):
    for path, data in (tmp_path / name, content), (tmp_path / f"{name}.gz", gzip.compress(content)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=f"{path.name}, {message}"):
            list(read_documents(path, "text"))


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
@pytest.mark.parametrize("field, message", [("body", "no field 'body', only text, score"), ("score", "no string in")])
def test_fields_that_do_not_fit(tmp_path, hub, kind, field, message):
    hub += RECORDS
    files, _ = find_files(write_source(tmp_path, kind, RECORDS))
    with pytest.raises(DataError, match=f"(line|row) 1: {message}"):
        list(read_file(files[0], field))


def test_sources_that_cannot_be_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for name in "a.parquet.gz", "a.csv":
        (tmp_path / name).write_bytes(b"x")
    for name, message in {
        "a.csv": "none can be read, only .txt",
        "a.parquet.gz": "none can be read, only .txt",
        "": "of 3 files none can be read",
        "pipe.txt": "is a pipe or a device",
        "gone.txt": "no such file or folder",
    }.items():
        with pytest.raises(DataError, match=message):
            find_files(tmp_path / name)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_damage_is_an_error(tmp_path, kind):
    """A changed byte or a missing end never leads to fewer or to other documents."""
    rng = random.Random(0)
    path = write_source(tmp_path, kind, [{"text": "".join(rng.choices("abcdefgh ", k=60))} for _ in range(300)])
    content = path.read_bytes()
    damaged = [content[:cut] for cut in rng.sample(range(len(content)), 20)]
    if kind == "jsonl.gz":  # the other two have no checksums unless their writer added them
        for i in rng.sample(range(10, len(content)), 20):
            damaged.append(content[:i] + bytes([content[i] ^ 8]) + content[i + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"in\.{kind}, "):
            list(read_documents(path, "text"))


def test_links(tmp_path, capsys):
    """Links to files are followed, links to folders are not; what is not read is reported."""
    inside, outside = tmp_path / "in", tmp_path / "outside"
    for path in inside / "b" / "1.txt", outside / "2.txt", tmp_path / "3.txt":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem)
    (inside / "c").symlink_to(outside)
    (inside / "d.txt").symlink_to(tmp_path / "3.txt")
    (inside / "b" / "loop").symlink_to(inside)
    (inside / "e.txt").symlink_to("nowhere")
    os.mkfifo(inside / "f.txt")
    prepare(inside, tmp_path / "out", val_source=outside / "2.txt", progress=False)
    assert texts(tmp_path / "out", "train") == ["1", "3"]
    assert f"in: 4 files or links are ignored, such as {inside / 'b' / 'loop'}" in capsys.readouterr().out


@pytest.mark.parametrize("source", ["hf:nobody/nothing::train", "hf:name", "hf:a:b:", "hf::a:train", "hf:a:b:c:d"])
def test_bad_hub_sources(source):
    message = "Dataset 'nobody/nothing' doesn't exist" if "nobody" in source else "expected hf:NAME:CONFIG:SPLIT"
    with pytest.raises(DataError, match=f"{source}: {message}"):
        find_files(source)


def test_missing_packages(tmp_path, monkeypatch):
    for name in "pyarrow", "backports.zstd", "compression.zstd", "datasets":
        monkeypatch.setitem(sys.modules, name, None)
    for name in "a.parquet", "a.jsonl.zst":
        (tmp_path / name).write_text("x")
    for source, missing in (
        (tmp_path / "a.parquet", "pyarrow"),
        (tmp_path / "a.jsonl.zst", "backports.zstd"),
        ("hf:a:b:c", "datasets"),
    ):
        with pytest.raises(DataError, match=f"pip install {missing}"):
            list(read_documents(source, "text"))


# ---------------------------------------------------------------------------------------------------------------------
# Enormous documents


@pytest.mark.parametrize("kind", ["txt", *KINDS])
def test_long_documents_are_left_out(tmp_path, hub, capsys, monkeypatch, kind):
    monkeypatch.setattr(sources, "LONGEST_DOCUMENT", 3_000)
    records = [{"text": text} for text in ("one", "y\n" * 2_000, "x" * 2_900, "z" * 9_000, "five")]
    hub += records
    source = write_source(tmp_path, kind, records)
    documents = [(text, dropped) for file in find_files(source)[0] for _, text, dropped in read_file(file, "text")]
    long = None, "too_long"
    assert documents == [("one", ""), long, (records[2]["text"], ""), long, ("five", "")]
    assert capsys.readouterr().out.count("left out, a document of more than") == 2
