"""Text to shards of token ids.

    python data/prepare.py                                    # the embedded corpus: no download, seconds
    python data/prepare.py --source=texts/ --tokenizer=gpt2 --out=data/prepared/texts
    python data/prepare.py --source=hf:HuggingFaceFW/fineweb-edu:sample-10BT:train --tokenizer=gpt2 --out=...

A source is a file or a folder (read recursively, in sorted order) of .txt, .md and .jsonl, each also .gz or .zst, and
.parquet; or a data set of the Hugging Face hub, streamed. In text, one blank line separates paragraphs and two or more
separate documents; in .jsonl each line is a document, in .parquet each row. The folder that is written holds

    train-00000.bin, ..., val-00000.bin, ...    token ids, raw little-endian uint16 or uint32 (meta.json: dtype): the
                                                documents one after the other, each ended by eos
    tokenizer.tiktoken                          the ranks of the tokenizer
    meta.json                                   the rest of the tokenizer, counts, shards and their checksums

It is whole or absent: written aside in OUT.partial, synced, renamed. After a kill or an error, the same command goes on
after the last input file whose tokens were safe, and the result is the same to the byte.
"""

import array
import bisect
import collections
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import multiprocessing
import os
import platform
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

import configurator
from data.shards import Output, fingerprint, partial_folder, put_back, verify_folder
from data.sources import READABLE, find_files, parse_where, read_file
from data.tokenizer import Tokenizer
from errors import DataError

source = "embedded"  # embedded (English that comes with Python), a file, a folder, or hf:NAME:CONFIG:SPLIT (the hub)
val_source = ""  # the same for validation; empty: a share of the documents of source, chosen by a hash of their text
val_fraction = 0.01  # that share, below 0.5
text_field = "text"  # the field that holds the text, in .jsonl, .parquet and on the hub
where = ""  # comparisons that a document's fields must all meet, as in "language==en,language_score>=0.8"
deduplicate = False  # drop a document whose text was there before; takes 10 bytes of memory a document
max_tokens = 0  # stop before the document with which the train split would exceed this; 0 = no limit
tokenizer = "embedded"  # embedded (4,096 ids), a tiktoken encoding (gpt2, ...), a rank file, or a hub folder
mask_token = ""  # with a hub folder: its special token to mask with; empty: the one it names, a reserved or a new one
pad_token = ""  # with a hub folder: its special token to pad with; empty: the one it names, or eos
out = "data/prepared/embedded"  # folder to write
overwrite = False  # replace that folder, if it is a prepared one, and an unfinished preparation of other settings
shard_tokens = 1_000_000_000  # tokens per shard; the last one has the rest
workers = 0  # processes that encode; 0 = one per core, and none for a few MB of text
verify = ""  # a prepared folder whose checksums to check; nothing is prepared then

EMBEDDED_FOLDER = "data/prepared/embedded"  # where train.py and eval/study look for the embedded corpus

# ---------------------------------------------------------------------------------------------------------------------
# Reading, in batches

BATCH_BYTES = 1 << 20  # text that a worker gets at a time
POOL_BYTES = 8 << 20  # a smaller source is encoded before a pool of processes is up
ESTIMATE_BYTES = 64 << 20  # a smaller source is done in seconds
SAMPLE_BYTES = 4 << 20  # on the disk, of up to four files together, to estimate
DROPPED = "empty", "too_long", "filtered", "duplicate"


@dataclasses.dataclass
class Batch:
    """Documents that follow each other, and what became of those between them."""

    read: int  # bytes of all files read with it and the batches before
    finished: int = 0  # files read to their end, if one ends with this batch
    texts: list = dataclasses.field(default_factory=list)
    sizes: list = dataclasses.field(default_factory=list)  # bytes of each text
    is_val: list = dataclasses.field(default_factory=list)  # whether each is for validation
    hashes: array.array = dataclasses.field(default_factory=lambda: array.array("Q"))  # of each, to find duplicates
    dropped: collections.Counter = dataclasses.field(default_factory=collections.Counter)


class HashSet:
    """A set of 64-bit hashes in about 10 bytes each: sorted arrays, one for each value of the first 16 bits."""

    def __init__(self, hashes):
        self.parts = [array.array("Q") for _ in range(1 << 16)]
        for item in hashes:
            self.add(int(item))

    def add(self, item):
        """Whether `item` was new."""
        part = self.parts[item >> 48]
        place = bisect.bisect_left(part, item)
        if place < len(part) and part[place] == item:
            return False
        part.insert(place, item)
        return True


def batches(files, start, seen, val_fraction, text_field, where):
    """Yield a Batch of about BATCH_BYTES after the other from files[start:]; where they end depends on the files alone.

    files: (file, size, split) each. A split of None is drawn from the content, so that a document keeps its split
    when the corpus grows. seen: a HashSet of the documents of files[:start], or None to keep duplicates.
    """
    done = sum(size for _, size, _ in files[:start])
    batch, held = Batch(done), 0
    for number, (file, size, split) in enumerate(files[start:], start + 1):
        for position, text, dropped in read_file(file, text_field, where):
            batch.read = done + position
            if not dropped:
                data = text.encode("utf-8", "surrogatepass")  # half a surrogate pair in JSON: tiktoken replaces it
                digest = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
                if seen is not None:
                    if seen.add(digest):
                        batch.hashes.append(digest)
                    else:
                        dropped = "duplicate"
            if dropped:
                batch.dropped[dropped] += 1
                continue
            batch.texts.append(text)
            batch.sizes.append(len(data))
            batch.is_val.append(split == "val" if split else digest / 2**64 < val_fraction)
            held += len(data)
            if held >= BATCH_BYTES:
                yield batch
                batch, held = Batch(batch.read), 0
        done += size
        if held >= BATCH_BYTES >> 4 or number == len(files):  # small files share a batch
            batch.read, batch.finished = done, number
            yield batch
            batch, held = Batch(done), 0


def print_estimate(files, tokenizer, text_field, where, max_tokens, workers, out):
    """Say what a preparation will take, from the beginning of up to four files; return the bytes it will read."""
    sampled = tokens = seconds = 0
    begun = files[:: -(-len(files) // 4)]
    for file, size, _ in begun:
        last, some, started = 0, 0, time.perf_counter()
        for position, text, dropped in read_file(file, text_field, where):
            if position > last >= SAMPLE_BYTES / len(begun):
                break
            last = position
            some += 0 if dropped else len(tokenizer.encode(text)) + 1
        share = size / max(last, 1)
        sampled, tokens = sampled + last * share, tokens + some * share
        seconds += (time.perf_counter() - started) * share
    size = sum(size for _, size, _ in files)
    scale = size / max(sampled, 1)
    if max_tokens:
        scale = min(scale, max_tokens / max(tokens, 1))
    disk, free = tokens * scale * token_dtype(tokenizer).itemsize, shutil.disk_usage(out.parent).free
    number, duration = tqdm.format_sizeof, tqdm.format_interval(seconds * scale / workers)
    print(f"{len(files)} files, {number(size)}B: about {number(tokens * scale)} tokens, {duration} with {workers} workers, "
          f"{number(disk)}B of disk ({number(free)}B are free)")
    return int(sampled * scale)


# ---------------------------------------------------------------------------------------------------------------------
# Encoding, in the order of the input and with a bounded number of batches in memory


def token_dtype(tokenizer):
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def encode_texts(tokenizer, texts):
    """Return the tokens of all texts, eos after each, as one array, and their number for each text as another."""
    eos = np.array([tokenizer.eos_id], np.uint32)
    documents = [np.append(tokenizer.encode_array(text), eos) for text in texts]
    lengths = np.array([len(ids) for ids in documents], np.int64)
    return np.concatenate([eos[:0], *documents]).astype(token_dtype(tokenizer)), lengths


def encode(batches, tokenizer, workers):
    """Yield each batch, without its texts, and encode_texts of it, in order; with two workers or more, in as many
    processes."""
    if workers == 1:
        for batch in batches:
            yield batch, *encode_texts(tokenizer, batch.texts)
        return
    # Each thread of the pool hands its batches to a process of its own and waits for the result.
    pool = concurrent.futures.ThreadPoolExecutor(workers, initializer=start_worker, initargs=(tokenizer,))
    pending = collections.deque()
    try:
        for batch in batches:
            pending.append((batch, pool.submit(ask_worker, batch.texts)))
            batch.texts = None
            if len(pending) > 2 * workers:
                batch, future = pending.popleft()
                yield batch, *future.result()
        for batch, future in pending:
            yield batch, *future.result()
    except (EOFError, ConnectionError, concurrent.futures.BrokenExecutor):
        raise DataError(
            "a worker process died. If it left no error above, it was killed, perhaps because memory ran out: "
            "fewer --workers need less"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


this_thread = threading.local()  # .worker: the connection to its process


def start_worker(tokenizer):
    context = multiprocessing.get_context("spawn")  # a fork copies locks that other threads, as torch's, may hold
    this_thread.worker, other_end = context.Pipe()
    context.Process(target=work, args=(other_end,), daemon=True).start()
    other_end.close()
    this_thread.worker.send(tokenizer)


def ask_worker(texts):
    this_thread.worker.send(texts)
    return this_thread.worker.recv()


def work(connection):
    """A worker process. It ends when nobody holds the other end of the connection: also if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    with contextlib.suppress(EOFError, ConnectionError):
        tokenizer = connection.recv()
        while True:
            connection.send(encode_texts(tokenizer, connection.recv()))


# ---------------------------------------------------------------------------------------------------------------------
# All of it


def problems(settings):
    """Yield what is wrong with the arguments of prepare(), given as a dict."""
    folder = Path(settings["out"])
    if folder.exists() and not settings["overwrite"]:
        yield f"{folder} exists: choose another --out, or replace it with --overwrite=True"
    elif folder.exists() and not (folder / "meta.json").is_file():
        yield f"{folder} exists and is not a prepared folder (it has no meta.json), so it is not replaced"
    loads = [(find_files, "source"), (find_files, "val_source"), (Tokenizer.load, "tokenizer", "mask_token", "pad_token"),
             (parse_where, "where")]  # fmt: skip
    for load, *names in loads:
        try:
            if settings[names[0]] or names[0] != "val_source":
                load(*(settings[name] for name in names))
        except DataError as error:
            yield str(error)
    if not 0 < settings["val_fraction"] < 0.5:
        yield f"val_fraction must be above 0 and below 0.5, got {settings['val_fraction']}"
    if settings["shard_tokens"] < 1:
        yield f"shard_tokens must be at least 1, got {settings['shard_tokens']}"
    for name, zero in ("workers", "one per core"), ("max_tokens", "no limit"):
        if settings[name] < 0:
            yield f"{name} must be 0 ({zero}) or more, got {settings[name]}"


def prepare(source, out, tokenizer="embedded", val_source="", val_fraction=0.01, shard_tokens=1_000_000_000, workers=0,
            text_field="text", where="", deduplicate=False, max_tokens=0, overwrite=False, mask_token="",
            pad_token="", progress=True):
    """Encode `source` into the folder `out` and return its meta; the arguments are the settings at the top.

    Above POOL_BYTES, or with workers > 1, the calling script needs the `if __name__ == "__main__":` that
    multiprocessing asks for. Raises DataError for bad input, OSError where the disk fails; `out` is then as before.
    """
    settings, out = locals(), Path(out).absolute()
    put_back(out)
    if wrong := list(problems(settings)):
        raise DataError("\n".join(wrong))
    tokenizer, where = Tokenizer.load(tokenizer, mask_token, pad_token), parse_where(where)
    files, ignored = [], []  # files: (file, size, split)
    # Validation first: what is in it is a duplicate in training, not the other way round, and max_tokens ends it all.
    for name, split in [(val_source, "val"), (source, "train")] if val_source else [(source, None)]:
        found, others = find_files(name)
        files += [(file, file.stat().st_size if isinstance(file, Path) else 0, split) for file in found]
        ignored += others
    if ignored:
        print(f"{len(ignored)} files are ignored, such as {ignored[0]}; read are {READABLE}")
    size = sum(size for _, size, _ in files)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    hub = any(str(file).startswith("hf:") for file, _, _ in files)
    workers = workers or (cores if size > POOL_BYTES or hub else 1)
    meta = {
        "format": 1,
        "tokenizer": tokenizer.state(),
        "dtype": token_dtype(tokenizer).name,
        "splits": {split: {"documents": 0, "tokens": 0, "bytes": 0, "shards": []} for split in ("train", "val")},
        **{f"skipped_{why}": 0 for why in DROPPED},
        "source": str(source),
        "python": platform.python_version(),
    }
    # What decides the result: an unfinished folder is gone on with only if all of it is the same.
    names = "source", "val_fraction", "shard_tokens", "text_field", "where", "deduplicate", "max_tokens"
    plan = {name: str(settings[name]) for name in names} | {"tokenizer": fingerprint(meta, tokenizer.rank_bytes())}
    inputs = [[str(file), size, split, file.stat().st_mtime_ns if size else 0] for file, size, split in files]
    with partial_folder(out) as partial, Output(out, partial, plan, inputs, shard_tokens, meta, overwrite) as output:
        splits = output.meta["splits"]
        count = before = splits["train"]["tokens"] + splits["val"]["tokens"]
        if output.finished:
            print(f"{partial}: going on after {output.finished} of {len(files)} input files")
        if progress and size > ESTIMATE_BYTES:
            size = print_estimate(files, tokenizer, text_field, where, max_tokens, workers, out)
        seen = HashSet(output.hashes()) if deduplicate else None
        source_batches = batches(files, output.finished, seen, val_fraction, text_field, where)
        started, done = time.perf_counter(), sum(size for _, size, _ in files[: output.finished])
        disable = None if progress else True
        with (
            tqdm(total=size or None, initial=done, unit="B", unit_scale=True, disable=disable) as bar,
            contextlib.closing(encode(source_batches, tokenizer, workers)) as encoded,
        ):
            for batch, tokens, lengths in encoded:
                output.write(batch, tokens, lengths, max_tokens)
                count = splits["train"]["tokens"] + splits["val"]["tokens"]
                speed = (count - before) / (time.perf_counter() - started) / 1e6
                bar.set_postfix_str(f"{count / 1e6:.1f}M tokens, {speed:.2f}M tokens/s", refresh=False)
                bar.update(batch.read - bar.n)
                if output.full:
                    break
        output.finish(tokenizer.rank_bytes())
    if progress:
        seconds = time.perf_counter() - started
        documents, size = (splits["train"][key] + splits["val"][key] for key in ("documents", "bytes"))
        skipped = "".join(f", {output.meta[f'skipped_{why}']:,} {why}" for why in DROPPED)
        print(f"{out.name}: {documents:,} documents, {count:,} tokens, {size / count:.2f} bytes per token, "
              f"{seconds:.1f} s, {(count - before) / seconds / 1e6:.2f}M tokens/s; left out{skipped[1:]}")
    return output.meta


def check(settings):
    return [] if settings["verify"] else problems(settings)


def terminate(signum, frame):
    raise SystemExit(128 + signum)  # unlike the default, it lets prepare() clean up


def prepare_embedded():
    """Prepare the embedded corpus with the embedded tokenizer, as train.py does when its default data are missing."""
    return prepare("embedded", EMBEDDED_FOLDER, val_fraction=0.05)


def main():
    settings = configurator.load(__file__, sys.argv[1:], check)
    signal.signal(signal.SIGTERM, terminate)
    try:
        if folder := settings.pop("verify"):
            verify_folder(folder)
            print(f"{folder}: all checksums are right")
        else:
            prepare(**settings)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
