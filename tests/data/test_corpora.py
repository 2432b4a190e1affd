"""Large corpora: their formats, filters, duplicates and limits; preparations that are killed and gone on with."""
import gzip
import json
import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest
from test_prepare import many_documents, texts, tokens, write_jsonl

from data import prepare as module
from data import shards, sources
from data.prepare import HashSet, prepare
from data.shards import load_meta, verify_folder
from data.sources import find_files, parse_where, read_documents
from errors import DataError

DOCUMENTS = ["one", "two\n\nlines", "émoji 😀", "four"]
RECORDS = [{"text": text, "language": "en" if i != 1 else "fr", "score": i / 4} for i, text in enumerate(DOCUMENTS)]


def write_zst(path, content):
    zstd = pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    # Several frames, as parallel compressors write them.
    path.write_bytes(zstd.compress(content[:70]) + zstd.compress(content[70:]))


def write_parquet(path, records, **options):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(records), path, **options)


def write_source(folder, kind, records):
    """Write records in a format and return it as a source."""
    lines = "".join(json.dumps(record) + "\n" for record in records).encode()
    path = folder / f"in.{kind}"
    if kind == "jsonl":
        path.write_bytes(lines)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        write_zst(path, lines)
    elif kind == "parquet":
        write_parquet(path, records, row_group_size=3)
    else:
        return f"hf:{folder.name}/{len(records)}:config:train"  # a name of its own: the data set is cached
    return path


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """A stand-in for the datasets package: a data set of two files."""
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


fork = multiprocessing.get_context("fork")  # the quickest
KINDS = ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "hub"]

# ---------------------------------------------------------------------------------------------------------------------
# Formats and filters


@pytest.mark.parametrize("kind", KINDS)
def test_formats(tmp_path, hub, kind):
    records = [*RECORDS, {**RECORDS[0], "text": " "}, {**RECORDS[0], "text": None}]
    hub += records
    source = write_source(tmp_path, kind, records)
    assert list(read_documents(source, "text")) == DOCUMENTS
    write_jsonl(tmp_path / "val.jsonl", ["for validation"])
    options = dict(val_source=tmp_path / "val.jsonl", progress=False)
    meta = prepare(source, tmp_path / "all", **options)
    assert texts(tmp_path / "all", "train") == DOCUMENTS and texts(tmp_path / "all", "val") == ["for validation"]
    assert (meta["skipped_empty"], meta["skipped_filtered"]) == (2, 0)
    if kind != "jsonl":  # the validation file has no such fields
        with pytest.raises(DataError, match=r"val.jsonl, line 1: no field 'language' \(where\), only id \(int\)"):
            prepare(source, tmp_path / "some", where="language==en", **options)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where, kept", [
    ("language==en", [0, 2, 3]), ("language != 'en'", [1]), ("score>=0.5, language==en", [2, 3]), ("", [0, 1, 2, 3]),
    ("score<.5", [0, 1]), ("score<=0.25", [0, 1]), ("score>0.5", [3]), ("language>en", [1]), ("score==0", [0]),
])
def test_where(tmp_path, hub, kind, where, kept):
    hub += RECORDS
    found = [text for file in find_files(write_source(tmp_path, kind, RECORDS))[0]
             for _, text, dropped in sources.read_file(file, "text", parse_where(where)) if not dropped]
    assert found == [DOCUMENTS[i] for i in kept]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where, field, message", [
    ("lang==en", "text", r"no field 'lang' \(where\), only text \(\w+\), language \(\w+\), score \(\w+\)"),
    ("", "content", r"no field 'content' \(text_field\), only text \(\w+\), language \(\w+\), score \(\w+\)"),
    ("", "score", r"no string in the field 'score' \(text_field\) but 0.0"),
    ("language==3", "text", "the field 'language' holds 'en', which cannot be compared with 3"),
    ("score>=high", "text", "the field 'score' holds 0.0, which cannot be compared with 'high'"),
])
def test_fields_that_do_not_fit(tmp_path, hub, kind, where, field, message):
    hub += RECORDS
    source = write_source(tmp_path, kind, RECORDS)
    with pytest.raises(DataError, match=message):
        prepare(source, tmp_path / "out", where=where, text_field=field, progress=False)
    assert not list(tmp_path.glob("out*"))


def test_where_of_text_and_of_nulls(tmp_path):
    (tmp_path / "a.txt").write_text("plain")
    with pytest.raises(DataError, match=r"a.txt, line 1: no field 'language' \(where\), only text \(str\)"):
        prepare(tmp_path / "a.txt", tmp_path / "out", where="language==en", progress=False)
    source = write_source(tmp_path, "jsonl", [{"text": "a", "score": None}, {"text": "b", "score": [1]}])
    documents = sources.read_file(source, "text", parse_where("score!=3"))
    assert next(documents)[1:] == (None, "filtered")  # a null meets no term
    with pytest.raises(DataError, match=r"line 2: the field 'score' holds \[1\]"):
        next(documents)


@pytest.mark.parametrize("term", ["language", "language=en", "=en", "==en", "score=>3", "score>=", ""])
def test_terms_that_are_none(term):
    with pytest.raises(DataError, match=f"where: {term!r} is not a field, one of == .*, and a value"):
        parse_where(f"score>=3,{term}")


@pytest.mark.parametrize("name, content, message", [
    ("a.jsonl.zst", b"not zstd", "a.jsonl.zst, damaged: "),
    ("a.parquet", b"PAR1 but not more", "a.parquet, damaged: "),
    ("a.parquet.gz", b"x", "a.parquet.gz: .gz files are not read"),
])
def test_damaged_files(tmp_path, name, content, message):
    pytest.importorskip("pyarrow"), write_zst(tmp_path / "is-there", b"")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / name, tmp_path / "out", progress=False)


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "parquet"])
def test_a_damaged_byte_or_a_missing_end_is_an_error(tmp_path, kind):
    """Wherever it is: never fewer documents, or others."""
    rng = random.Random(0)
    records = [{"text": "".join(rng.choices("abcdefgh ", k=60))} for _ in range(300)]
    path = write_source(tmp_path, kind, records)
    content, expected = path.read_bytes(), [record["text"] for record in records]
    for cut in rng.sample(range(len(content)), 20):
        path.write_bytes(content[:cut])
        with pytest.raises(DataError, match=rf"in\.{kind}, "):
            list(read_documents(path, "text"))
    if kind == "jsonl.gz":  # the other two have no checksums unless their writer added them
        for place in rng.sample(range(10, len(content)), 20):
            path.write_bytes(content[:place] + bytes([content[place] ^ 8]) + content[place + 1 :])
            with pytest.raises(DataError, match=rf"in\.{kind}, "):
                list(read_documents(path, "text"))
    path.write_bytes(content)
    assert list(read_documents(path, "text")) == expected


def test_invalid_utf8_in_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"text": pyarrow.array([b"fine", b"\xff\xfe"])})
    schema = pyarrow.schema([("text", pyarrow.string())])
    strings = pyarrow.StringArray.from_buffers(2, *table["text"].chunk(0).buffers()[1:])
    parquet.write_table(pyarrow.table([strings], schema=schema), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="a.parquet, after row 0: text that is not UTF-8: .*0xff"):
        list(read_documents(tmp_path / "a.parquet", "text"))


@pytest.mark.parametrize("source, message", [
    ("hf:nobody/nothing:config:train", "hf:nobody/nothing:config:train: Dataset 'nobody/nothing' doesn't exist"),
    ("hf:name", "hf:name: expected hf:NAME:CONFIG:SPLIT, such as hf:"),
    ("hf:name:config:", "expected hf:NAME:CONFIG:SPLIT"),
    ("hf::config:train", "expected hf:NAME:CONFIG:SPLIT"),
    ("hf:a:b:c:d", "expected hf:NAME:CONFIG:SPLIT"),
])
def test_bad_hub_sources(tmp_path, source, message):
    with pytest.raises(DataError, match=message):
        prepare(source, tmp_path / "out")


def test_packages_that_are_missing(tmp_path, monkeypatch):
    for name in "pyarrow", "backports", "compression", "datasets":
        monkeypatch.setitem(sys.modules, name, None)
    for name, missing in ("a.parquet", "pyarrow"), ("a.jsonl.zst", "backports"):
        (tmp_path / name).touch()
        with pytest.raises(DataError, match=rf"{name}: reading it needs a package .*{missing}.* pip install pyarrow"):
            prepare(tmp_path / name, tmp_path / "out")
    with pytest.raises(DataError, match="hf:a:b:c: .*needs the datasets package: pip install datasets"):
        prepare("hf:a:b:c", tmp_path / "out")
    assert not list(tmp_path.glob("out*"))


def test_zstd_of_newer_pythons(monkeypatch):
    monkeypatch.setitem(sys.modules, "compression", types.SimpleNamespace(zstd="its own"))
    assert sources.zstd() == "its own"


# ---------------------------------------------------------------------------------------------------------------------
# Duplicates, limits, enormous documents


def test_hash_set():
    rng = random.Random(0)
    items = [rng.getrandbits(64) for _ in range(5_000)] + [0, 1, 2**64 - 1, 2**63, 2**48, 2**48 - 1]
    hashes, first = HashSet(np.array(items[:100], np.uint64)), set(items[:100])
    for item in [*items, *items]:
        assert hashes.add(item) == (item not in first)
        first.add(item)
    assert sum(map(len, hashes.parts)) == len(set(items))


def test_duplicates(tmp_path):
    documents = many_documents(500)
    folder = tmp_path / "in"
    folder.mkdir()
    write_jsonl(folder / "a.jsonl", [*documents[:300], documents[7], documents[7]])
    write_jsonl(folder / "b.jsonl", documents[200:])
    once = prepare(write_jsonl(tmp_path / "c.jsonl", documents), tmp_path / "once", progress=False)
    meta = prepare(folder, tmp_path / "out", deduplicate=True, progress=False)
    assert meta["skipped_duplicate"] == 102
    assert meta["fingerprint"] == once["fingerprint"]
    assert prepare(folder, tmp_path / "kept", progress=False)["splits"]["train"]["documents"] > 550
    # A document of the validation source is not trained on.
    write_jsonl(tmp_path / "val.jsonl", documents[50:60])
    prepare(folder, tmp_path / "split", val_source=tmp_path / "val.jsonl", deduplicate=True, progress=False)
    assert texts(tmp_path / "split", "val") == documents[50:60]
    assert texts(tmp_path / "split", "train") == documents[:50] + documents[60:]


def test_token_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 2_000)
    source, val = write_jsonl(tmp_path / "in.jsonl", many_documents(1_000)), write_jsonl(tmp_path / "v.jsonl", ["a"])
    for name, options in ("share", {"val_fraction": 0.2}), ("source", {"val_source": val}):
        whole = prepare(source, tmp_path / name, progress=False, **options)["splits"]["train"]["tokens"]
        whole_train, whole_val = (texts(tmp_path / name, split) for split in ("train", "val"))
        for limit in (777, whole - 1, whole) if name == "share" else (777,):
            results = []
            for workers in (1, 2) if name == "source" else (1,):
                out = tmp_path / f"{name}-{limit}-{workers}"
                common = dict(workers=workers, shard_tokens=333, progress=False)
                meta = prepare(source, out, max_tokens=limit, **common, **options)
                results.append({path.name: path.read_bytes() for path in out.iterdir()})
            assert results[0] == results[-1]
            train, val_documents = texts(out, "train"), texts(out, "val")
            assert train == whole_train[: len(train)] and val_documents == whole_val[: len(val_documents)]
            record = meta["splits"]["train"]
            assert record["documents"] == len(train) and record["bytes"] == sum(map(len, train))
            assert record["tokens"] == len(tokens(out, "train")) <= limit
            assert record["tokens"] > limit - 50 or limit > whole  # the next document would have been too much
    with pytest.raises(DataError, match="no document is left for the train split"):
        prepare(source, tmp_path / "none", max_tokens=3, progress=False)
    with pytest.raises(DataError, match=r"max_tokens must be 0 \(no limit\) or more, got -1"):
        prepare(source, tmp_path / "none", max_tokens=-1)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "jsonl.gz", "jsonl.zst", "parquet", "hub"])
def test_long_documents_are_left_out(tmp_path, monkeypatch, hub, capsys, kind):
    monkeypatch.setattr(sources, "LONGEST_DOCUMENT", 1000)
    monkeypatch.setattr(sources, "BLOCK", 64)
    long = "word " * 600
    documents = [long, "one", "two", long, long, "x" * 900, "three"]
    records = [{"text": text} for text in documents]
    hub += records
    source = tmp_path / "in.txt"
    source.write_text("\n\n\n".join(documents))
    if kind != "txt":
        source = write_source(tmp_path, kind, records)
    meta = prepare(source, tmp_path / "out", val_source=write_jsonl(tmp_path / "v.jsonl", ["v"]), progress=False)
    assert texts(tmp_path / "out", "train") == ["one", "two", "x" * 900, "three"]
    assert meta["skipped_too_long"] == 3
    place = {"txt": "line 10", "hub": "row 1"}.get(kind, "line 4" if "jsonl" in kind else "row 4")
    assert f"{place}: left out, a document of more than" in capsys.readouterr().out.replace("#1", "")


def peak(function, *args):
    """In a process of its own: the MB by which the memory grew at its peak; what it returns in the exit code."""
    receive, send = fork.Pipe(False)
    process = fork.Process(target=measure, args=(send, function, *args))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    return receive.recv()


def measure(send, function, *args):
    sources.LONGEST_DOCUMENT, sources.PARQUET_BYTES = 4 << 20, 1 << 20
    # The peak of a fork begins at its parent's present size.
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    function(*args)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    send.send(grown / (1 << 10 if sys.platform == "linux" else 1 << 20))


def read_all(source):
    for _ in read_documents(source, "text"):
        pass


@pytest.mark.parametrize("kind", ["txt", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
def test_memory_is_flat(tmp_path, kind):
    """With one document of 60 MB where 4 is the limit; in parquet, which decodes whole rows, a row group of 150 MB."""
    long = b"lorem ipsum " * (5 << 20)
    path = tmp_path / f"in.{kind}"
    if kind == "txt":
        path.write_bytes(b"short\n\n\n" + long + b"\n\n\nshort")
    elif kind == "parquet":
        rng = random.Random(0)
        write_parquet(path, [{"text": rng.randbytes(5_000).hex()} for _ in range(15_000)], row_group_size=15_000)
    else:
        line = b'{"text": "' + long + b'"}\n'
        if kind == "jsonl.zst":
            write_zst(path, line)
        else:
            path.write_bytes(gzip.compress(line, 1) if kind == "jsonl.gz" else line)
    assert peak(read_all, path) < (80 if kind == "parquet" else 20)  # MB; pyarrow itself takes 40


def test_estimate(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(6):
        write_jsonl(folder / f"{i}.jsonl", many_documents(3_000))
    write_source(folder, "jsonl.gz", [{"text": text} for text in many_documents(20_000)])
    monkeypatch.setattr(module, "ESTIMATE_BYTES", 1 << 20)
    monkeypatch.setattr(module, "SAMPLE_BYTES", 1 << 17)
    monkeypatch.setattr(sources, "BLOCK", 1 << 14)
    count = prepare(folder, tmp_path / "out", workers=1)["splits"]["train"]["tokens"]
    line = next(line for line in capsys.readouterr().out.splitlines() if "files, " in line)
    told = r"7 files, [\d.]+MB: about ([\d.]+)M tokens, 00:\d\d with 1 workers, [\d.]+MB of disk \([\d.]+.B are free\)"
    assert abs(float(re.fullmatch(told, line)[1]) * 1e6 / count - 1) < 0.3
    prepare(folder, tmp_path / "few", workers=1, max_tokens=50_000)
    assert re.search(r"about (49|50)\.\dk tokens", capsys.readouterr().out)


# ---------------------------------------------------------------------------------------------------------------------
# Killed and gone on with


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Nine files of three formats with duplicates, one of them without documents, and what comes of them."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "in").mkdir()
    for i in range(9):
        documents = many_documents(150 + 20 * i)[10 * i :] if i != 4 else []
        if i % 3 == 0 or i == 4:
            write_jsonl(folder / "in" / f"{i}.jsonl", documents)
        elif i % 3 == 1:
            path = write_source(folder, "jsonl.gz", [{"text": text} for text in documents])
            path.rename(folder / "in" / f"{i}.jsonl.gz")
        else:
            (folder / "in" / f"{i}.txt").write_text("\n\n\n".join(documents))
    assert in_child(folder / "in", folder / "expected") == 0
    return folder


OPTIONS = dict(deduplicate=True, shard_tokens=1500, val_fraction=0.1, progress=False)


def quickly(source, out, options, end=None, pause=0.0):
    """In a process of its own: prepare() with small batches and a commit after each file. Before the sync() of number
    `end`, or a rename after it, it ends as if killed; it takes a pause with every batch."""
    module.BATCH_BYTES, shards.COMMIT_SECONDS, os.fsync = 3_000, 0, lambda descriptor: None  # slow where others use it
    calls, real = 0, {(shards, "sync"): shards.sync, (Path, "rename"): Path.rename, (Path, "replace"): Path.replace}

    def counted(function):
        def call(*args):
            nonlocal calls
            if calls == end:
                os._exit(7)
            calls += 1
            return function(*args)

        return call

    for (owner, name), function in real.items():
        setattr(owner, name, counted(function))
    if pause:
        write = shards.Output.write
        shards.Output.write = lambda *args: (time.sleep(pause), write(*args))
    prepare(source, out, **{**OPTIONS, **options})


def child(*args, **options):
    process = fork.Process(target=quickly, args=args, kwargs=options)
    process.start()
    return process


def in_child(source, out, options=None, **more):
    process = child(source, out, options or {}, **more)
    process.join(60)
    return process.exitcode


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_ended_before_any_sync_or_rename(corpus, tmp_path):
    """At each of the moments at which what is on the disk changes its meaning."""
    out, going_on, end = tmp_path / "out", 0, 0
    while (code := in_child(corpus / "in", out, end=end)) == 7:
        assert not out.exists() or content(out).keys() >= content(corpus / "expected").keys()
        if not out.exists():
            with pytest.raises(DataError, match="no such folder"):
                load_meta(out)
            state = tmp_path / "out.partial" / "state.json"
            going_on += state.exists() and len(json.loads(state.read_text())["files"]) > 0
            assert in_child(corpus / "in", out, {"progress": True}) == 0
        assert content(out) == content(corpus / "expected")
        verify_folder(out)
        shutil.rmtree(out)
        end += 6
    assert code == 0 and going_on > 4
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("seed, options", [(0, {}), (1, {"max_tokens": 9_000}), (2, {"workers": 2})])
def test_kill_9_at_random_moments(corpus, tmp_path, seed, options):
    rng, out, kills = random.Random(seed), tmp_path / "out", 0
    assert in_child(corpus / "in", tmp_path / "expected", {**options, "workers": 1}) == 0
    while True:
        process = child(corpus / "in", out, options, pause=0.03)
        process.join(rng.uniform(0.1, 0.3) * (1 + kills))  # longer each time, so that it ends on a busy machine too
        if process.exitcode is not None:
            break
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        kills += 1
        if out.exists():  # killed after its last rename
            break
    assert kills > 0
    assert content(out) == content(tmp_path / "expected")


@pytest.fixture
def unfinished(corpus, tmp_path):
    """The folder out, of which out.partial is left: some of its files are done. And a copy of the corpus."""
    shutil.copytree(corpus / "in", tmp_path / "in")
    assert in_child(tmp_path / "in", tmp_path / "out", end=25) == 7
    assert 2 <= len(json.loads((tmp_path / "out.partial" / "state.json").read_text())["files"]) <= 7
    return tmp_path / "out"


def test_files_that_are_done_are_not_read_again(unfinished, corpus, capsys, monkeypatch):
    state = json.loads((unfinished.with_name("out.partial") / "state.json").read_text())
    done = [Path(file[0]) for file in state["files"]]
    read, real = [], module.read_file
    monkeypatch.setattr(module, "read_file", lambda file, *args: (read.append(file), real(file, *args))[1])
    monkeypatch.setattr(module, "BATCH_BYTES", 3_000)
    (unfinished.parent / "in" / "9.txt").write_text("A new last file does not matter.")
    prepare(unfinished.parent / "in", unfinished, **OPTIONS)
    assert f"going on after {len(done)} of 10 input files" in capsys.readouterr().out
    assert read == sorted((unfinished.parent / "in").iterdir())[len(done) :]
    for split in "train", "val":
        expected = texts(corpus / "expected", split)
        assert texts(unfinished, split)[: len(expected)] == expected


def test_an_unfinished_folder_of_something_else(unfinished, corpus):
    source = unfinished.parent / "in"
    message = (r"out.partial holds an unfinished preparation, \d input files done, with another text_field, "
               "deduplicate: go on with the same settings, or begin anew with --overwrite=True")
    with pytest.raises(DataError, match=message):
        prepare(source, unfinished, **{**OPTIONS, "deduplicate": False, "text_field": "body"})
    with pytest.raises(DataError, match="with another tokenizer: "):
        prepare(source, unfinished, **OPTIONS, tokenizer=write_ranks(unfinished.parent / "other"))
    first = (source / "0.jsonl").read_bytes()
    (source / "0.jsonl").write_bytes(first + b"\n")
    with pytest.raises(DataError, match="0.jsonl, one of them, has changed since or is not in its place: put it back"):
        prepare(source, unfinished, **OPTIONS)
    (source / "0.jsonl").write_bytes(first)
    meta = prepare(source, unfinished, **OPTIONS, overwrite=True)
    assert meta["fingerprint"] == load_meta(corpus / "expected")["fingerprint"]
    assert {"out", "in", "other"} == set(os.listdir(unfinished.parent))


def write_ranks(path):
    from data.tokenizer import EMBEDDED

    path.write_bytes(b"".join(EMBEDDED.read_bytes().splitlines(True)[:-4]))
    return path


def test_bad_input_far_into_a_corpus(unfinished, corpus):
    """An error keeps what is done as well; when its cause is gone, the same command goes on."""
    source, good = unfinished.parent / "in", (unfinished.parent / "in" / "8.txt").read_bytes()
    (source / "8.txt").write_bytes(good + b"\xff")
    with pytest.raises(DataError, match="8.txt, line .*byte 0xff is not UTF-8"):
        prepare(source, unfinished, **OPTIONS)
    assert (unfinished.with_name("out.partial") / "state.json").exists() and not unfinished.exists()
    (source / "8.txt").write_bytes(good)
    assert in_child(source, unfinished) == 0
    expected = content(corpus / "expected")
    assert {name: part for name, part in content(unfinished).items() if name != "meta.json"} == {
        name: part for name, part in expected.items() if name != "meta.json"}


def limited(source, out, size, send):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        quickly(source, out, {"shard_tokens": 10**9})
    except DataError as error:
        send.send(str(error))


@pytest.mark.parametrize("size", [0, 2_000, 20_000])
def test_a_full_disk(corpus, tmp_path, size):
    receive, send = fork.Pipe(False)
    process = fork.Process(target=limited, args=(corpus / "in", tmp_path / "out", size, send))
    process.start()
    process.join(30)
    assert receive.poll() and "the disk is full: " in (message := receive.recv()) and "out was not written" in message
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "out.partial").exists() == (size == 20_000)  # what can be gone on with stays
    assert in_child(corpus / "in", tmp_path / "out", {"shard_tokens": 10**9}) == 0
    assert in_child(corpus / "in", tmp_path / "expected", {"shard_tokens": 10**9}) == 0
    assert content(tmp_path / "out") == content(tmp_path / "expected")


def test_two_processes_do_not_prepare_the_same_folder(corpus, tmp_path):
    process = child(corpus / "in", tmp_path / "out", {}, pause=0.1)
    while not list(tmp_path.glob("out.partial/*/*.bin")):
        assert process.is_alive()
        time.sleep(0.01)
    with pytest.raises(DataError, match="another process is preparing .*out"):
        prepare(corpus / "in", tmp_path / "out", **OPTIONS)
    process.kill()
    process.join()


def test_stopped_between_the_renames(corpus, tmp_path):
    assert in_child(corpus / "in", tmp_path / "out") == 0
    before = load_meta(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "out.replaced")
    with pytest.raises(DataError, match="out exists"):
        prepare(corpus / "in", tmp_path / "out", **OPTIONS)
    assert load_meta(tmp_path / "out") == before and os.listdir(tmp_path) == ["out"]
