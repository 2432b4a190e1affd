"""Text to shards: what is written, that it is whole or absent, and that a killed preparation goes on."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from data import prepare as module
from data.files import lock_folder
from data.prepare import make_pieces, prepare
from data.shards import load_meta
from data.tokenizer import Tokenizer
from data.tokenizer_files import EMBEDDED, read_tokenizer
from errors import DataError
from helpers import ROOT, flip_bit
from prepare_helpers import OPTIONS, in_child, many_documents, texts, tokens, write_texts

DOCUMENTS = ["First document.\nIts second line.\n\nA second paragraph.", "Second document.", "Third."]


@pytest.fixture
def sources(tmp_path):
    """A text file whose first document is for validation, as the arguments of prepare()."""
    (tmp_path / "in.txt").write_text("\n\n\n".join(["For validation.", *DOCUMENTS]))
    return {"source": tmp_path / "in.txt", "val_fraction": 0.3}


def test_a_prepared_folder(sources, tmp_path, monkeypatch):
    """The fingerprint is frozen: what decides a run has a checksum that no change of code may change."""
    meta = prepare(**sources, out=tmp_path / "out")
    tokenizer = read_tokenizer("embedded")
    expected = [i for text in DOCUMENTS for i in [*tokenizer.encode(text), tokenizer.eos_id]]
    assert tokens(tmp_path / "out", "train") == expected
    assert meta == load_meta(tmp_path / "out") and meta["fingerprint"][:16] == "85c3d7554ff431f8"
    train = dict(documents=3, tokens=len(expected), bytes=sum(map(len, DOCUMENTS)))
    assert meta["splits"]["train"].items() >= train.items() and meta["splits"]["val"]["documents"] == 1
    names = ["meta.json", "tokenizer.tiktoken", "train-00000.bin", "val-00000.bin"]
    with pytest.raises(DataError, match="out exists, and is not replaced"):
        prepare(**sources, out=tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == names and sorted(os.listdir(tmp_path)) == ["in.txt", "out"]
    for vocab_size, dtype in (1 << 16, "uint16"), (70_000, "uint32"):
        large = Tokenizer.from_state({**tokenizer.state(), "vocab_size": vocab_size}, tokenizer.content)
        monkeypatch.setattr("data.prepare.read_tokenizer", lambda spec: large)
        assert prepare(**sources, out=tmp_path / dtype)["dtype"] == dtype
        assert tokens(tmp_path / dtype, "train") == expected


def test_documents_without_text_are_left_out_and_counted(tmp_path, capsys):
    for name, documents in ("many", many_documents(50)), ("one", ["one " * 1000]):
        write_texts(tmp_path / "in.jsonl", [*documents, None, " ", ""])
        splits = prepare(tmp_path / "in.jsonl", tmp_path / name, val_fraction=0.3)["splits"]
        assert [split["empty"] for split in splits.values()] == [3, 0]
        assert "left out: 3 documents without text" in capsys.readouterr().out


@pytest.mark.parametrize("fraction", [0.01, 0.49])
@pytest.mark.parametrize("text", ["one " * 1000, "two " * 1000])  # the hash puts "two" into val
def test_a_single_book(tmp_path, text, fraction):
    """Its tail is for validation, whatever the hash; each split ends in eos."""
    (tmp_path / "book.txt").write_text(text)
    meta = prepare(tmp_path / "book.txt", tmp_path / "out", val_fraction=fraction)
    train, val = (tokens(tmp_path / "out", split) for split in ("train", "val"))
    assert len(val) == round(fraction * (len(train) - 1 + len(val)))
    assert train[-1] == val[-1] == meta["tokenizer"]["eos_id"]
    assert texts(tmp_path / "out", "train")[0] + texts(tmp_path / "out", "val")[0] == text
    assert meta == load_meta(tmp_path / "out") and meta["splits"]["train"]["tokens"] == len(train)


@pytest.mark.parametrize("max_tokens", [0, 100_000])
def test_workers_and_parts_do_not_change_the_result(tmp_path, max_tokens):
    """A val split chosen by the text, and a token limit within a piece. Where the shards end does not matter either."""
    documents = [f"{i} " + f"{i * i % 997} is a number. " * 20 for i in range(800)]
    source = write_texts(tmp_path / "in.jsonl", documents)
    options = dict(val_fraction=0.1, max_tokens=max_tokens)
    one = prepare(source, tmp_path / "one", **options)
    workers = 2 if max_tokens else 1
    two = prepare(source, tmp_path / "two", workers=workers, shard_bytes=50_000, **options)
    for part in "3/3", "1/3":
        assert prepare(source, tmp_path / "parts", part=part, shard_bytes=20_000, workers=1, **options) is None
    parts = prepare(source, tmp_path / "parts", shard_bytes=20_000, workers=1, **options)
    assert len(one["splits"]["train"]["shards"]) == 1 < len(two["splits"]["train"]["shards"])
    for name, meta in ("two", two), ("parts", parts):
        assert meta["fingerprint"] == one["fingerprint"] and not (tmp_path / f"{name}.partial").exists()
        for split, record in meta["splits"].items():
            assert tokens(tmp_path / name, split) == tokens(tmp_path / "one", split)
            assert record | {"shards": []} == one["splits"][split] | {"shards": []}
    train, val = texts(tmp_path / "one", "train"), set(texts(tmp_path / "one", "val"))
    assert train == [text for text in documents if text not in val][: len(train)] and 400 < len(train) > len(val) > 20
    record = one["splits"]["train"]
    assert record["documents"] == len(train) and record["bytes"] == sum(map(len, train))
    assert not max_tokens or 99_000 < record["tokens"] <= max_tokens
    prepare(write_texts(tmp_path / "small.jsonl", documents[:300]), tmp_path / "small", val_fraction=0.1)
    assert texts(tmp_path / "small", "val") == [text for text in documents[:300] if text in val]  # it may grow


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rsplit(")", 1)[1].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_it_leaves_neither_a_folder_nor_a_worker(tmp_path, number):
    source, out = write_texts(tmp_path / "in.jsonl", many_documents(1_000)), tmp_path / "out"
    source.write_bytes(source.read_bytes() * 300)  # takes seconds to encode
    command = [sys.executable, "-m", "data.prepare", f"--source={source}", f"--out={out}", "--workers=2"]
    heeded = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # shells ignore it in what runs in the background
    parent = subprocess.Popen([*command, "--shard_bytes=300_000"], cwd=ROOT, preexec_fn=heeded)
    signal.alarm(40)
    while not list(tmp_path.glob("out.partial/*/*.json")):
        time.sleep(0.01)
    tasks = Path(f"/proc/{parent.pid}/task")  # on Linux; elsewhere the workers are not looked for
    workers = [int(pid) for file in tasks.glob("*/children") for pid in file.read_text().split()]
    assert len(workers) >= 2 or not tasks.exists()
    parent.send_signal(number)
    assert parent.wait() != 0 and not out.exists()
    while any(map(is_running, workers)):
        time.sleep(0.01)
    signal.alarm(0)


def test_dead_worker_ends_the_preparation():
    with pytest.raises(DataError, match="a worker process was killed"):
        list(make_pieces(os._exit, [(9,), (9,)], 2))


def test_a_damaged_folder_is_refused(sources, tmp_path):
    prepare(**sources, out=tmp_path / "out")
    for name, old, new, message in [
        ("train-00000.bin", b"", b"!", "train-00000.bin is not .* bytes long"),
        ("meta.json", b'"shards"', b'"shads"', "is damaged, .*prepare the text again, into another folder.*KeyError"),
        ("meta.json", b'"uint16"', b'"float16"', "the tokenizer or meta.json has changed"),
        ("tokenizer.tiktoken", b"IQ==", b"", "the tokenizer or meta.json has changed"),
    ]:
        path = tmp_path / "out" / name
        whole = path.read_bytes()
        path.write_bytes(whole.replace(old, new, 1))
        with pytest.raises(DataError, match=message):
            load_meta(tmp_path / "out")
        path.write_bytes(whole)


def test_all_wrong_settings_are_in_one_message(run, tmp_path):
    settings = [f"--source={'x' * 300}", "--tokenizer=gtp2", "--val_fraction=0.5", "--shard_bytes=-1", "--workers=-1"]
    code, text = run([*settings, "--max_tokens=-1", "--part=17/16", f"--out={tmp_path}"], "data.prepare")
    assert code == 2 and "\n  8. " in text and "\n  9. " not in text and "Traceback" not in text
    for value in "File name too long", "gtp2", "0.5", "17/16", str(tmp_path):
        assert value in text


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Nine files, one of them without documents, what comes of them, and a preparation of them that was killed."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "in").mkdir()
    for i in range(9):
        documents = many_documents(100 + 20 * i)[10 * i :] if i != 4 else []
        write_texts(folder / "in" / f"{i}.jsonl{'.gz' * (i % 2)}", documents)
    assert in_child(folder / "in", folder / "expected")[0] == 0
    assert in_child(folder / "in", folder / "out", end=60)[0] == 7 and 5 < len(records(folder / "out")) < 12
    return folder


def content(out):  # but for the name of the source
    return {path.name: path.read_bytes() for path in out.iterdir()} | {"meta.json": load_meta(out) | {"source": ""}}


def records(out):  # of the pieces that are done
    return sorted(out.with_name("out.partial").glob("*/*.json"))


SLOW = [pytest.param(options, 40, marks=pytest.mark.slow) for options in ({}, {"max_tokens": 9_000})]


@pytest.mark.parametrize("options, number", [({}, 3), *SLOW])
def test_killed_before_a_change_of_the_disk(corpus, tmp_path, options, number):
    """End at one moment, go on, compare: at `number` moments and the last ones."""
    out, done = tmp_path / "all/out", set()
    code, changes = in_child(corpus / "in", out, options)
    expected = content(out)
    assert code == 0 and (options or expected == content(corpus / "expected"))
    for end in sorted({*range(1, changes, max(1, changes // number)), *range(changes - 5, changes + 1)}):
        out = tmp_path / str(end) / "out"
        assert in_child(corpus / "in", out, options, end)[0] == 7
        done.add(len(records(out)))
        if not out.exists():
            assert in_child(corpus / "in", out, options)[0] == 0 and os.listdir(out.parent) == ["out"]
        assert content(out) == expected
    assert len(done) > 3


@pytest.fixture
def unfinished(corpus, tmp_path):  # some pieces are done; beside a copy of the corpus
    return shutil.copytree(corpus, tmp_path, dirs_exist_ok=True) / "out"


@pytest.mark.parametrize("kind", ["00001.json", "shards/train-00001.bin"])
@pytest.mark.parametrize("damage", ["bit", "gone", "link"])
def test_a_damaged_piece_is_made_again_and_no_other(unfinished, corpus, tmp_path, kind, damage):
    (path,) = unfinished.with_name("out.partial").glob(f"*/{kind}")
    before, whole = {}, path.read_bytes()
    for file in records(unfinished):
        shard = file.with_name("shards") / f"train-{file.stem}.bin"
        if shard.stat().st_size and file.stem != "00001":
            before[shard.name] = shard.stat().st_ino
    assert len(before) > 4
    path.unlink()
    (tmp_path / "precious").write_bytes(b"content")
    if damage == "bit":
        path.write_bytes(whole)
        flip_bit(path, whole.find(b'"tokens": ') + 10)  # a digit of a record, or any byte of a shard
    elif damage == "link" and kind.startswith("shards"):
        path.symlink_to(tmp_path / "precious")
    prepare(tmp_path / "in", unfinished, **OPTIONS)
    assert content(unfinished) == content(corpus / "expected")
    assert {name: (unfinished / name).stat().st_ino for name in before} == before
    assert (tmp_path / "precious").read_bytes() == b"content" and not (unfinished / path.name).is_symlink()


@pytest.mark.parametrize("changed", ["tokenizer", "in/0.jsonl", "in/9.txt", "out.partial/a"])
def test_an_unfinished_folder_of_other_settings_or_input_is_refused_and_kept(unfinished, tmp_path, changed):
    before, options = records(unfinished), OPTIONS
    if changed == "tokenizer":  # with four ids less than the embedded one
        options = OPTIONS | {"tokenizer": tmp_path / changed}
        (tmp_path / changed).write_bytes(b"".join(EMBEDDED.read_bytes().splitlines(True)[:-4]))
    else:
        (tmp_path / changed).open("a").write('{"text": "new"}\n')
    with pytest.raises(DataError, match="is from another preparation: source, tokenizer.*or remove"):
        prepare(tmp_path / "in", unfinished, **options)
    assert records(unfinished) == before != []


def test_input_that_changes_while_it_is_read(sources, tmp_path, monkeypatch):
    times = itertools.count()
    monkeypatch.setattr(module, "size_and_time", lambda path: (9, next(times)))
    with pytest.raises(DataError, match="in.txt has changed since the preparation began"):
        prepare(**sources, out=tmp_path / "out")
    assert os.listdir(tmp_path) == ["in.txt"]


def test_a_part_runs_beside_other_parts_and_nothing_else(sources, tmp_path):
    held = partial(lock_folder, tmp_path / "out.partial", "prepare.lock")
    with held(shared=True):
        prepare(**sources, out=tmp_path / "out", part="1/2")
        with pytest.raises(DataError, match=f"in use by process {os.getpid()}"):
            prepare(**sources, out=tmp_path / "out")
    with held(), pytest.raises(DataError, match="in use by"):
        prepare(**sources, out=tmp_path / "out", part="2/2")


def test_a_full_disk(run, corpus, tmp_path):
    out = tmp_path / "out"
    args = [f"--source={corpus / 'in'}", f"--out={out}", *(f"--{name}={value}" for name, value in OPTIONS.items())]
    code, text = run(args, "data.prepare", FILE_SIZE_LIMIT="20000")
    assert code == 1 and "File too large" in text and "Traceback" not in text and not out.exists()
    assert records(out)  # what can be gone on with stays
    assert run(args, "data.prepare")[0] == 0
    assert content(out) == content(corpus / "expected")
