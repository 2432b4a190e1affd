"""Text to shards: what is read, what is written, and that it is whole or absent."""
import errno
import functools
import gzip
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from helpers import ROOT
sys.path.insert(0, str(ROOT))
from data import embedded, shards
from data import prepare as module
from data.prepare import prepare
from data.shards import load_meta, verify_folder
from data.sources import read_documents
from data.tokenizer import Tokenizer
from errors import DataError

TEXT = "First document.\nIts second line.\n\nA second paragraph.\n\n\nSecond document.\n\n\n\n \nThird.\n"
DOCUMENTS = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load("embedded")


@pytest.fixture(scope="module")
def embedded_documents():
    return list(embedded.documents())


@pytest.fixture
def sources(tmp_path):
    """A text file for training and one for validation, as the arguments of prepare()."""
    (tmp_path / "train.txt").write_text(TEXT)
    (tmp_path / "val.txt").write_text("Validation.")
    return {"source": tmp_path / "train.txt", "val_source": tmp_path / "val.txt", "progress": False}


def tokens(folder, split):
    """All tokens of a split, from its shards in order."""
    meta = load_meta(folder)
    shards = meta["splits"][split]["shards"]
    return np.concatenate([np.fromfile(Path(folder, shard["file"]), meta["dtype"]) for shard in shards]).tolist()


def texts(folder, split):
    """The documents of a split, back from its tokens."""
    tokenizer = Tokenizer.from_state(load_meta(folder)["tokenizer"], Path(folder, "tokenizer.tiktoken").read_bytes())
    return tokenizer.decode(tokens(folder, split)).split("[EOS]")[:-1]


def many_documents(count):
    return [f"Document {i} is about the number {i * i}.\n\nIt ends." for i in range(count)]


def write_jsonl(path, documents, field="text"):
    opened = gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w")
    with opened as file:
        file.writelines(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(documents))
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Reading


@pytest.mark.parametrize("content", [
    TEXT.encode(),
    TEXT.replace("\n", "\r\n").encode(),
    b"\xef\xbb\xbf" + TEXT.encode(),
    b"\n\n\n" + TEXT.encode().rstrip(),
], ids=["plain", "crlf", "byte order mark", "blank ends"])
def test_text_documents(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(content))
    assert list(read_documents(tmp_path / "a.txt", "text")) == DOCUMENTS
    assert list(read_documents(tmp_path / "b.txt.gz", "text")) == DOCUMENTS


def test_folder_is_read_in_order_and_ignored_files_are_told(tmp_path, capsys):
    folder = tmp_path / "in"
    (folder / "b").mkdir(parents=True)
    write_jsonl(folder / "b" / "2.jsonl.gz", ["from jsonl", " \n ", "last"])
    (folder / "a.md").write_text("from md")
    (folder / "b" / "1.TXT").write_text("from txt")
    (folder / "table.csv").write_text("no,text")
    (tmp_path / "val").write_text("a named file needs no extension")
    meta = prepare(folder, tmp_path / "out", val_source=tmp_path / "val", progress=False)
    assert texts(tmp_path / "out", "train") == ["from md", "from txt", "from jsonl", "last"]
    assert texts(tmp_path / "out", "val") == ["a named file needs no extension"]
    assert meta["skipped_empty"] == 1
    assert "1 files are ignored, such as" in capsys.readouterr().out


def test_jsonl_field_and_broken_surrogates(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "half \\ud83d pair"}\n\n{"body": "whole \\ud83d\\ude00"}\n')
    write_jsonl(tmp_path / "v.jsonl", ["x"], "body")
    prepare(tmp_path / "a.jsonl", tmp_path / "out", val_source=tmp_path / "v.jsonl", text_field="body", progress=False)
    assert texts(tmp_path / "out", "train") == ["half \ufffd pair", "whole 😀"]


def test_embedded_corpus(embedded_documents):
    documents = embedded_documents
    assert 1e6 < sum(len(text.encode()) for text in documents) < 4e6
    assert 200 < len(documents) == len(set(documents))
    words = " ".join(documents).split()
    assert 0.02 < words.count("the") / len(words) < 0.08  # English


# ---------------------------------------------------------------------------------------------------------------------
# What is written


def test_tokens_and_meta(sources, tmp_path, tokenizer):
    meta = prepare(**sources, out=tmp_path / "out")
    expected = [i for text in DOCUMENTS for i in [*tokenizer.encode(text), tokenizer.eos_id]]
    assert tokens(tmp_path / "out", "train") == expected
    train = meta["splits"]["train"]
    assert (train["documents"], train["tokens"]) == (3, len(expected))
    assert train["bytes"] == sum(len(text) for text in DOCUMENTS)
    assert meta["splits"]["val"]["documents"] == 1
    assert meta == load_meta(tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == [
        "meta.json", "tokenizer.tiktoken", "train-00000.bin", "val-00000.bin"
    ]
    assert prepare(**sources, out=tmp_path / "again")["fingerprint"] == meta["fingerprint"]
    (tmp_path / "train.txt").write_text(TEXT + "!")
    assert prepare(**sources, out=tmp_path / "other")["fingerprint"] != meta["fingerprint"]


def test_shards_cross_documents(sources, tmp_path):
    prepare(**sources, out=tmp_path / "one")
    meta = prepare(**sources, out=tmp_path / "many", shard_tokens=7)
    sizes = [shard["tokens"] for shard in meta["splits"]["train"]["shards"]]
    assert len(sizes) > 3 and set(sizes[:-1]) == {7} and 0 < sizes[-1] <= 7
    assert tokens(tmp_path / "many", "train") == tokens(tmp_path / "one", "train")
    verify_folder(tmp_path / "many")
    count = meta["splits"]["train"]["tokens"]
    exact = prepare(**sources, out=tmp_path / "exact", shard_tokens=count)["splits"]["train"]["shards"]
    assert [shard["tokens"] for shard in exact] == [count]


def test_dtype_follows_the_vocabulary(sources, tmp_path, tokenizer, monkeypatch):
    assert prepare(**sources, out=tmp_path / "small")["dtype"] == "uint16"
    for vocab_size, dtype in (1 << 16, "uint16"), (70_000, "uint32"):
        large = Tokenizer(**{**tokenizer.state(), "vocab_size": vocab_size}, ranks=tokenizer.ranks)
        monkeypatch.setattr(Tokenizer, "load", lambda *spec: large)
        assert prepare(**sources, out=tmp_path / str(vocab_size))["dtype"] == dtype
        assert tokens(tmp_path / str(vocab_size), "train") == tokens(tmp_path / "small", "train")


def test_workers_do_not_change_the_result(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BATCH_BYTES", 5_000)
    source = write_jsonl(tmp_path / "in.jsonl", many_documents(2_000))
    fingerprints = set()
    for workers in (1, 2, 3):
        out = tmp_path / str(workers)
        meta = prepare(source, out, workers=workers, shard_tokens=10_000, progress=False)
        fingerprints.add(meta["fingerprint"])
        verify_folder(out)
        wait_for(lambda: not multiprocessing.active_children())  # workers end with their work
    assert len(fingerprints) == 1
    val = texts(out, "val")
    assert texts(out, "train") == [text for text in many_documents(2_000) if text not in val]


def test_few_batches_are_in_memory(tokenizer):
    """However long the source: no batch is read before there is a worker for it."""
    read = 0

    def source():
        nonlocal read
        for read in range(1, 101):
            yield module.Batch(0, texts=["a text"])

    for workers, most in (1, 1), (2, 5):
        for done, _ in enumerate(itertools.islice(module.encode(source(), tokenizer, workers), 20)):
            assert read - done <= most


def test_val_split_is_stable_when_the_corpus_grows(tmp_path):
    for name, count in ("small", 300), ("large", 900):
        write_jsonl(tmp_path / f"{name}.jsonl", many_documents(count)[::-1])
        prepare(tmp_path / f"{name}.jsonl", tmp_path / name, val_fraction=0.1, progress=False)
    small = {split: set(texts(tmp_path / "small", split)) for split in ("train", "val")}
    large = {split: set(texts(tmp_path / "large", split)) for split in ("train", "val")}
    assert small["train"] < large["train"] and small["val"] < large["val"]
    assert 60 < len(large["val"]) < 120 and len(large["train"]) + len(large["val"]) == 900


# ---------------------------------------------------------------------------------------------------------------------
# Whole or absent


def start(source, out, *settings):
    """Run the script in the background; returns once it has begun to write."""
    command = [sys.executable, ROOT / "data" / "prepare.py", f"--source={source}", f"--out={out}", *settings]
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a test run in the background may ignore it
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=heard)
    wait_for(lambda: list(out.parent.glob(f"{out.name}.partial/*/*.bin")))
    return process


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def slow_source(tmp_path_factory):
    """Text that takes seconds to encode."""
    return write_jsonl(tmp_path_factory.mktemp("slow") / "in.jsonl", many_documents(1_000) * 500)


def test_kill_leaves_nothing_that_looks_finished(sources, slow_source, tmp_path):
    out = tmp_path / "out"
    process = start(slow_source, out, "--workers=2")
    tasks = Path(f"/proc/{process.pid}/task")  # on Linux; elsewhere the orphans are not looked for

    def children():
        return [int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()]

    wait_for(lambda: len(children()) >= 2 or not tasks.exists())
    workers = children()
    process.kill()
    process.wait()
    assert not out.exists() and len(list(tmp_path.glob("out.partial*"))) == 1
    with pytest.raises(DataError, match="no such folder; prepare it: python data/prepare.py"):
        load_meta(out)
    prepare(**sources, out=out)
    assert texts(out, "train") == DOCUMENTS
    assert not list(tmp_path.glob("out.partial*"))
    wait_for(lambda: not any(map(is_running, workers)))  # no orphans


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_remove_the_partial_folder(slow_source, tmp_path, number):
    process = start(slow_source, tmp_path / "out", "--workers=2")
    time.sleep(0.5)
    process.send_signal(number)
    output, _ = process.communicate(timeout=20)
    assert process.returncode != 0 and "Traceback" not in output
    assert os.listdir(tmp_path) == []


def test_dead_worker_ends_the_preparation(slow_source, tmp_path):
    def kill_one():
        wait_for(multiprocessing.active_children)
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    with pytest.raises(DataError, match="a worker process died"):
        prepare(slow_source, tmp_path / "out", workers=2, progress=False)
    killer.join()
    assert os.listdir(tmp_path) == []


def test_full_disk(sources, tmp_path, monkeypatch):
    def write(self, tokens):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shards.ShardWriter, "write", write)
    with pytest.raises(DataError, match="the disk is full: .*out was not written"):
        prepare(**sources, out=tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["train.txt", "val.txt"]


def test_overwriting(sources, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(DataError, match="out exists: choose another --out, or replace it with --overwrite=True"):
        prepare(**sources, out=out)
    with pytest.raises(DataError, match="not a prepared folder .*not replaced"):
        prepare(**sources, out=out, overwrite=True)
    out.rmdir()
    before = prepare(**sources, out=out)
    (tmp_path / "train.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match="UTF-8"):
        prepare(**sources, out=out, overwrite=True)
    assert load_meta(out) == before  # a failed replacement changes nothing
    (tmp_path / "train.txt").write_text("New.")
    prepare(**sources, out=out, overwrite=True)
    assert texts(out, "train") == ["New."]
    assert sorted(os.listdir(tmp_path)) == ["out", "train.txt", "val.txt"]


def test_damage_is_found(sources, tmp_path):
    out = tmp_path / "out"
    prepare(**sources, out=out)
    shard = out / "train-00000.bin"
    content = shard.read_bytes()
    shard.write_bytes(content[:-2])
    with pytest.raises(DataError, match=f"train-00000.bin is missing or not {len(content)} bytes long"):
        load_meta(out)
    shard.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    load_meta(out)
    with pytest.raises(DataError, match="train-00000.bin has changed"):
        verify_folder(out)
    shard.write_bytes(content)
    (out / "tokenizer.tiktoken").write_bytes(b"")
    with pytest.raises(DataError, match="the tokenizer or meta.json has changed"):
        verify_folder(out)
    (out / "meta.json").write_text("{")
    with pytest.raises(DataError, match="no readable meta.json"):
        load_meta(out)


# ---------------------------------------------------------------------------------------------------------------------
# Bad input


@pytest.mark.parametrize("name, content, message", [
    ("a.txt", b"one\n\n\ntwo\nth\xffree\n", "a.txt, line 5: byte 0xff is not UTF-8"),
    ("a.txt", "utf-16".encode("utf-16"), "a.txt, line 1: byte 0xff is not UTF-8"),
    ("a.jsonl", b'{"text": "x"}\n{"text": \n', "a.jsonl, line 2: not JSON: Expecting value at column 10"),
    ("a.jsonl", b'{"id": 1, "content": "x"}', r"line 1: no field 'text' .text_field., only id .int., content .str."),
    ("a.jsonl", b'{"text": 12}', r"line 1: no string in the field 'text' \(text_field\) but 12"),
    ("a.jsonl", b'{"text": null}', "no document is left for the train split: 0 found .1 skipped_empty"),
    ("a.jsonl", b'["x"]', "line 1: expected a JSON object, got a list"),
    ("a.jsonl", b'{"text": "\xff"}', "line 1: byte 0xff is not UTF-8"),
    ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 99)[:-9], "a.jsonl.gz, damaged: "),
    ("a.txt.gz", b"not gzip", "a.txt.gz, damaged: Not a gzipped"),
    ("a.txt", b"x" * 2000, "no document is left for the train split: 0 found .*1 skipped_too_long"),
    ("a.txt", b"xxxxxxxx\n" * 200, "no document is left for the train split: 0 found .*1 skipped_too_long"),
    ("a.jsonl", b'{"text": "' + b"x" * 2000, "no document is left for the train split: 0 found .*1 skipped_too_long"),
    ("a.txt", b"just one document", "no document is left for the .* split: 1 found"),
    ("a.txt", b" \n", "no document is left for the train split: 0 found"),
    ("a.csv", b"x", "a.csv: .csv files are not read, only .txt, .md and .jsonl, each also .gz or .zst, and .parquet"),
    ("in/a.csv", b"x", "in: none of the 1 files in this folder is read; read are .txt"),
])
def test_bad_sources(tmp_path, monkeypatch, name, content, message):
    monkeypatch.setattr("data.sources.LONGEST_DOCUMENT", 1000)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    source = path if path.parent == tmp_path else path.parent
    with pytest.raises(DataError, match=message):
        prepare(source, tmp_path / "out", progress=False)
    assert len(os.listdir(tmp_path)) == 1


def test_all_bad_settings_are_told_at_once(tmp_path):
    settings = ["--source=nowhere", "--val_source=neither", "--tokenizer=gtp2", "--val_fraction=0.5",
                "--shard_tokens=0", "--workers=-1", "--max_tokens=-1", "--where=score", f"--out={tmp_path}"]
    command = [sys.executable, ROOT / "data" / "prepare.py", *settings]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    for message in (f"{tmp_path} exists", "no such file or folder: 'nowhere'", "no such file or folder: 'neither'",
                    "tokenizer 'gtp2': no such rank file", "val_fraction must be above 0 and below 0.5, got 0.5",
                    "shard_tokens must be at least 1, got 0", "workers must be 0 (one per core) or more, got -1",
                    "max_tokens must be 0 (no limit) or more, got -1",
                    "where: 'score' is not a field"):
        assert message in run.stderr
    with pytest.raises(DataError, match="val_fraction must be above 0"):
        prepare("embedded", tmp_path / "out", val_fraction=0.0)


def test_command_line(embedded_documents, tmp_path):
    script, out = ROOT / "data" / "prepare.py", tmp_path / "out"
    run = subprocess.run([sys.executable, script, f"--out={out}"], capture_output=True, text=True, check=True)
    assert "bytes per token" in run.stdout
    assert len(tokens(out, "val")) > 3_000 and len(tokens(out, "train")) > 400_000
    # The corpus is the same in another process, and each split keeps its order.
    train, val = texts(out, "train"), texts(out, "val")
    assert sorted(train + val) == sorted(embedded_documents)
    assert val == [text for text in embedded_documents if text in val]
    verify = [sys.executable, script, f"--verify={out}"]
    assert "all checksums are right" in subprocess.run(verify, capture_output=True, text=True, check=True).stdout
    (out / "val-00000.bin").unlink()
    run = subprocess.run(verify, capture_output=True, text=True)
    assert run.returncode == 1 and run.stderr.startswith("error: ") and "val-00000.bin is missing" in run.stderr
