"""Which documents a source has: formats, filters, limits, errors."""

import gzip
import json
import multiprocessing
import random
import resource
import sys
import types

import pytest

from data import sources
from data.prepare import prepare
from data.sources import find_files, parse_where, read_documents, read_file
from errors import DataError
from prepare_helpers import texts, write_jsonl

TEXT = "First document.\nIts second line.\n\nA second paragraph.\n\n\nSecond document.\n\n\n\n \nThird.\n"
IN_TEXT = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]
DOCUMENTS = ["one", "two\n\nlines", "émoji 😀", "four"]
RECORDS = [{"text": text, "language": "en" if i != 1 else "fr", "score": i / 4} for i, text in enumerate(DOCUMENTS)]
KINDS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "hub"]


def write_zst(path, content):
    zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    path.write_bytes(zstd.compress(content[:70]) + zstd.compress(content[70:]))  # two frames, as parallel writers do


def write_parquet(path, records, **options):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(records), path, **options)


def write_source(folder, kind, records):
    """Write records in a format and return them as a source."""
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    path = folder / f"in.{kind}"
    if kind == "hub":
        return f"hf:{folder.name}/{len(records)}:config:train"  # a name of its own, because the data set is cached
    if kind == "txt":
        path.write_text("\n\n\n".join(record["text"] for record in records))
    elif kind == "parquet":
        write_parquet(path, records, row_group_size=3)
    elif kind == "jsonl.zst":
        write_zst(path, lines)
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


@pytest.mark.parametrize(
    "content",
    [TEXT, TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, "\n\n\n" + TEXT.rstrip()],
    ids=["plain", "crlf", "byte order mark", "blank ends"],
)
def test_text_documents(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content.encode())
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content.encode()))
    assert list(read_documents(tmp_path / "a.txt", "text")) == IN_TEXT
    assert list(read_documents(tmp_path / "b.txt.gz", "text")) == IN_TEXT


@pytest.mark.parametrize("kind", KINDS)
def test_formats(tmp_path, hub, kind):
    records = [*RECORDS, {**RECORDS[0], "text": " "}, {**RECORDS[0], "text": None}]
    hub += records
    source = write_source(tmp_path, kind, records)
    assert list(read_documents(source, "text")) == DOCUMENTS
    val = write_jsonl(tmp_path / "val.jsonl", ["for validation"])
    meta = prepare(source, tmp_path / "all", val_source=val, workers=1, progress=False)
    assert texts(tmp_path / "all", "train") == DOCUMENTS and texts(tmp_path / "all", "val") == ["for validation"]
    assert (meta["skipped_empty"], meta["skipped_filtered"]) == (2, 0)


def test_folder_is_read_in_order(tmp_path, capsys):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    write_jsonl(folder / "b" / "2.jsonl.gz", ["from jsonl", " \n ", "last"])
    (folder / "a.md").write_text("from md")
    (folder / "b" / "1.TXT").write_text("from txt")
    (folder / "table.csv").write_text("no,text")
    assert list(read_documents(folder, "text")) == ["from md", "from txt", "from jsonl", "last"]
    (tmp_path / "val").write_text("a named file needs no extension")
    prepare(folder, tmp_path / "out", val_source=tmp_path / "val", progress=False)
    assert texts(tmp_path / "out", "val") == ["a named file needs no extension"]
    assert "table.csv" in capsys.readouterr().out


def test_broken_surrogates_in_json(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "half \\ud83d pair"}\n\n{"body": "whole \\ud83d\\ude00"}\n')
    val = write_jsonl(tmp_path / "v.jsonl", ["x"], "body")
    prepare(tmp_path / "a.jsonl", tmp_path / "out", val_source=val, text_field="body", progress=False)
    assert texts(tmp_path / "out", "train") == ["half \ufffd pair", "whole 😀"]


def test_embedded_corpus():
    documents = list(read_documents("embedded", "text"))
    assert 1e6 < sum(len(text.encode()) for text in documents) < 4e6
    assert 200 < len(documents) == len(set(documents))
    words = " ".join(documents).split()
    assert 0.02 < words.count("the") / len(words) < 0.08  # English


# ---------------------------------------------------------------------------------------------------------------------
# Filters


@pytest.mark.parametrize(
    "where, kept",
    [
        ("language==en", [0, 2, 3]),
        ("language != 'en'", [1]),
        ("score>=0.5, language==en", [2, 3]),
        ("score<.5", [0, 1]),
        ("score<=0.25", [0, 1]),
        ("score>0.5", [3]),
        ("", [0, 1, 2, 3]),
    ],
)
def test_where(tmp_path, hub, where, kept):
    hub += RECORDS
    for kind in KINDS if where == "language==en" else ["jsonl"]:
        files, _ = find_files(write_source(tmp_path, kind, RECORDS))
        found = [
            text for file in files for _, text, dropped in read_file(file, "text", parse_where(where)) if not dropped
        ]
        assert found == [DOCUMENTS[i] for i in kept]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "where, field, message",
    [
        ("lang==en", "text", r"no field 'lang' \(where\), only text \(\w+\), language \(\w+\), score \(\w+\)"),
        ("", "content", r"no field 'content' \(text_field\), only text \(\w+\), language \(\w+\), score \(\w+\)"),
        ("", "score", r"no string in the field 'score' \(text_field\) but 0.0"),
        ("language==3", "text", "the field 'language' holds 'en', .* 3"),
        ("score>=high", "text", "the field 'score' holds 0.0, .* 'high'"),
    ],
)
def test_fields_that_do_not_fit(tmp_path, hub, kind, where, field, message):
    hub += RECORDS
    files, _ = find_files(write_source(tmp_path, kind, RECORDS))
    with pytest.raises(DataError, match=message):
        list(read_file(files[0], field, parse_where(where)))


def test_a_null_meets_no_comparison(tmp_path):
    source = write_source(tmp_path, "jsonl", [{"text": "a", "score": None}, {"text": "b", "score": [1]}])
    documents = read_file(source, "text", parse_where("score!=3"))
    assert next(documents)[1:] == (None, "filtered")
    with pytest.raises(DataError, match=r"line 2: the field 'score' holds \[1\]"):
        next(documents)


@pytest.mark.parametrize("term", ["language", "language=en", "=en", "==en", "score=>3", "score>=", ""])
def test_bad_comparisons(term):
    with pytest.raises(DataError, match=f"where: {term!r} is not a field, one of == .*, and a value"):
        parse_where(f"score>=3,{term}")


# ---------------------------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"one\n\n\ntwo\nth\xffree\n", "a.txt, line 5: byte 0xff is not UTF-8"),
        ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl, line 2: not JSON: Expecting value at column 10"),
        ("a.jsonl", b'["x"]', "line 1: expected a JSON object, got a list"),
        ("a.jsonl", b'{"text": "\xff"}', "line 1: byte 0xff is not UTF-8"),
        ("a.parquet.gz", b"x", "a.parquet.gz: .gz files cannot be read"),
        ("a.csv", b"x", "a.csv: .csv files cannot be read, only .txt"),
        ("in/a.csv", b"x", "in: none of the 1 files in this folder can be read, only .txt"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_documents(path if path.parent == tmp_path else path.parent, "text"))


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_damage_is_an_error(tmp_path, kind):
    """A changed byte or a missing end never leads to fewer or to other documents."""
    rng = random.Random(0)
    records = [{"text": "".join(rng.choices("abcdefgh ", k=60))} for _ in range(300)]
    path = write_source(tmp_path, kind, records)
    content = path.read_bytes()
    damaged = [content[:cut] for cut in rng.sample(range(len(content)), 20)]
    if kind == "jsonl.gz":  # the other two have no checksums unless their writer added them
        for i in rng.sample(range(10, len(content)), 20):
            damaged.append(content[:i] + bytes([content[i] ^ 8]) + content[i + 1 :])
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"in\.{kind}, "):
            list(read_documents(path, "text"))
    path.write_bytes(content)
    assert list(read_documents(path, "text")) == [record["text"] for record in records]


def test_invalid_utf8_in_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    text = pyarrow.array([b"fine", b"\xff\xfe"]).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet, after row 0: text that is not UTF-8: .*0xff"):
        list(read_documents(tmp_path / "a.parquet", "text"))


@pytest.mark.parametrize(
    "source", ["hf:nobody/nothing:config:train", "hf:name", "hf:a:b:", "hf::a:train", "hf:a:b:c:d"]
)
def test_bad_hub_sources(source):
    message = "Dataset 'nobody/nothing' doesn't exist" if "nobody" in source else "expected hf:NAME:CONFIG:SPLIT"
    with pytest.raises(DataError, match=f"{source}: {message}"):
        find_files(source)


def test_missing_packages(tmp_path, monkeypatch):
    for name in "pyarrow", "backports.zstd", "compression.zstd", "datasets":
        monkeypatch.setitem(sys.modules, name, None)
    for name, missing in ("a.parquet", "pyarrow"), ("a.jsonl.zst", "backports.zstd"):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=f"pip install {missing}"):
            find_files(tmp_path / name)
    with pytest.raises(DataError, match="pip install datasets"):
        find_files("hf:a:b:c")


# ---------------------------------------------------------------------------------------------------------------------
# Enormous documents


def slow(*kinds):
    return [pytest.param(kind, marks=pytest.mark.slow) for kind in kinds]


@pytest.mark.parametrize("kind", ["txt", "jsonl", "hub", *slow("jsonl.gz", "jsonl.zst", "parquet")])
def test_long_documents_are_left_out(tmp_path, hub, capsys, kind):
    fits = "x" * (31 << 20)
    records = [{"text": text} for text in ("one", "y" * (33 << 20), fits, "three")]
    hub += records
    source = write_source(tmp_path, kind, records)
    documents = [document for file in find_files(source)[0] for document in read_file(file, "text")]
    assert [text for _, text, _ in documents] == ["one", None, fits, "three"]
    assert documents[1][2] == "too_long"
    assert "left out, a document of more than 32 MB" in capsys.readouterr().out


def measure_memory(send, source):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # the peak of a fork begins at its parent's size
    for _ in read_documents(source, "text"):
        pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    send.send(grown / (1 << 10 if sys.platform == "linux" else 1 << 20))


@pytest.mark.parametrize("kind", ["txt", "jsonl.gz", "parquet", *slow("jsonl", "jsonl.zst")])
def test_memory_is_bounded(tmp_path, kind):
    """Read one document of 150 MB, or a parquet row group of as much."""
    if kind == "parquet":
        rng, source = random.Random(0), tmp_path / "in.parquet"
        write_parquet(source, [{"text": rng.randbytes(5_000).hex()} for _ in range(15_000)], row_group_size=15_000)
    else:
        text = "\n".join(["lorem ipsum " * 1_000] * 12_500) if kind == "txt" else "lorem ipsum " * 12_500_000
        source = write_source(tmp_path, kind, [{"text": text}])
        del text
    fork = multiprocessing.get_context("fork")
    receive, send = fork.Pipe(False)
    process = fork.Process(target=measure_memory, args=(send, source))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert receive.recv() < 120  # MB; pyarrow itself takes 40
