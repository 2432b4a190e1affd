"""Turn text into shards of token ids.

    python -m data.prepare                                    # the embedded corpus: no download, seconds
    python -m data.prepare --source=texts/ --tokenizer=gpt2 --out=data/prepared/texts

docs/data.md lists the sources and tokenizers, and what the prepared folder holds. In short: train-00000.bin, ... and
val-00000.bin, ... with raw token ids, one document after the other, each ended by eos; the tokenizer; and meta.json.

It is written in OUT.partial and renamed when it is complete. After a kill or an error, the same command continues after
the last shard that was written, and the result is the same to the byte.
"""

import collections
import concurrent.futures
import contextlib
import hashlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import configurator
from data.shards import check_out, fingerprint, token_dtype, unfinished_folder
from data.sources import READABLE, find_files, read_file
from data.tokenizer import Tokenizer
from errors import DataError
from errors import progress as progress_bar

source = "embedded"  # embedded (English that comes with the project), a file or a folder
val_fraction = 0.01  # of the documents, chosen by a hash of the text, are for validation; below 0.5
text_field = "text"  # the field that holds the text, in .jsonl and .parquet
max_tokens = 0  # stop before the document with which the train split would exceed this; 0 = no limit
tokenizer = "embedded"  # embedded (4,096 ids), a tiktoken encoding (gpt2, ...), a rank file, or a hub folder
out = "data/prepared/embedded"  # folder to write; must not exist
shard_tokens = 250_000_000  # a shard ends with the document that reaches this; it is in memory until then
workers = 0  # processes that encode; 0 = one per core, and none for a few MB of text

EMBEDDED_FOLDER = "data/prepared/embedded"  # where train.py and eval/study look for the embedded corpus
BATCH_BYTES = 1 << 20  # text that a worker gets at a time
POOL_BYTES = 8 << 20  # a smaller source is encoded before worker processes have started

# ---------------------------------------------------------------------------------------------------------------------
# Reading


class Document(NamedTuple):
    file: int  # its input file, counted from 0
    number: int  # in its file, counted from 1
    position: int  # bytes of all input files read so far
    text: str
    size: int  # bytes of the text
    split: str  # train or val


def read_input(files, cfg, begin=0, skip=0):
    """Yield the Documents of files[begin:], without the first `skip`.

    files: [(file, size), ...]. A hash of the text chooses the split, so that a document keeps it when the corpus grows.
    """
    before = sum(size for _, size in files[:begin])
    for index, (file, size) in enumerate(files[begin:], begin):
        for number, (position, text) in enumerate(read_file(file, cfg.text_field), 1):
            if index == begin and number <= skip:
                continue
            data = text.encode("utf-8", "surrogatepass")  # JSON may hold half a surrogate pair
            draw = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
            split = "val" if draw < cfg.val_fraction else "train"
            yield Document(index, number, before + position, text, len(data), split)
        before += size


def in_batches(documents):
    """Yield lists of about BATCH_BYTES of text."""
    batch, size = [], 0
    for document in documents:
        batch.append(document)
        size += document.size
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


# ---------------------------------------------------------------------------------------------------------------------
# Encoding


def encode_batch(texts, tokenizer=None):
    """Return the tokens of all texts, with eos after each, as one array, and the number of each one's as another.

    tokenizer: None means that of the worker process.
    """
    tokenizer = tokenizer or worker_tokenizer
    eos = np.array([tokenizer.eos_id], np.uint32)
    parts = [np.append(tokenizer.encode_array(text), eos) for text in texts]
    lengths = np.array([len(ids) for ids in parts], np.int64)
    return np.concatenate(parts).astype(token_dtype(tokenizer.vocab_size)), lengths


def encode(batches, tokenizer, workers):
    """Yield (batch, tokens, lengths) in the order of the batches: encode_batch() of each, in `workers` processes.

    At most 2 * workers + 1 batches are in memory. One worker means this process.
    """
    if workers == 1:
        for batch in batches:
            yield batch, *encode_batch([document.text for document in batch], tokenizer)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, start_worker, [tokenizer])
    pending = collections.deque()
    try:
        for batch in batches:
            pending.append((batch, pool.submit(encode_batch, [document.text for document in batch])))
            if len(pending) > 2 * workers:
                batch, future = pending.popleft()
                yield batch, *future.result()
        for batch, future in pending:
            yield batch, *future.result()
    except concurrent.futures.BrokenExecutor:
        raise DataError("a worker process was killed, perhaps for want of memory: give fewer --workers") from None
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker(tokenizer):
    """Keep the tokenizer for encode_batch(), and end this process when its parent is killed."""
    global worker_tokenizer
    worker_tokenizer = tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C

    def exit_with_parent():
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


# ---------------------------------------------------------------------------------------------------------------------
# Everything together


def check(cfg):
    """Yield what is wrong with the settings."""
    for load, value in (check_out, cfg.out), (find_files, cfg.source), (Tokenizer.load, cfg.tokenizer):
        try:
            load(value)
        except (DataError, OSError) as error:  # the latter: a name that is too long, a folder that cannot be read
            yield str(error)
    if not 0 < cfg.val_fraction < 0.5:
        yield f"val_fraction={cfg.val_fraction}: must be above 0 and below 0.5"
    yield from configurator.outside_limits(cfg, at_least_1=["shard_tokens"], at_least_0=["workers", "max_tokens"])


def prepare(source, out, tokenizer="embedded", progress=True, **settings):
    """Encode `source` into the folder `out` and return its meta.json. The settings are those at the top of this file.

    For more than POOL_BYTES, or with workers > 1, the calling script needs the `if __name__ == "__main__":` that
    multiprocessing asks for. Raises DataError for bad input and OSError where the disk fails; `out` is then as before.
    """
    cfg = configurator.load(__file__, [])
    if unknown := settings.keys() - cfg.keys():
        raise TypeError(f"prepare() has no setting {', '.join(sorted(unknown))}")
    cfg.update(settings, source=str(source), out=str(Path(out).absolute()), tokenizer=str(tokenizer))
    if problems := list(check(cfg)):
        raise DataError("\n".join(problems))
    tokenizer = Tokenizer.load(cfg.tokenizer)
    found, ignored = find_files(cfg.source)
    if ignored:
        print(f"{cfg.source}: {len(ignored)} files or links are ignored, such as {ignored[0]}; read are {READABLE}")
    files = [(file, file.stat().st_size) for file in found]
    size = sum(size for _, size in files)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = cfg.workers or (cores if size > POOL_BYTES else 1)
    meta = {
        "tokenizer": tokenizer.state(),
        "dtype": token_dtype(tokenizer.vocab_size).name,
        "splits": {split: {"documents": 0, "tokens": 0, "bytes": 0, "shards": []} for split in ("train", "val")},
        "source": cfg.source,
    }
    names = "source", "val_fraction", "text_field", "max_tokens", "shard_tokens"
    plan = {name: cfg[name] for name in names} | {"tokenizer": fingerprint(meta, tokenizer.file_bytes())}
    inputs = [[str(file), size, file.stat().st_mtime_ns] for file, size in files]
    started = time.perf_counter()
    with unfinished_folder(Path(cfg.out), plan, inputs, meta) as output:
        if output.place != (0, 0):
            print(f"{cfg.out}: going on after document {output.place[1]} of {files[output.place[0]][0]}")
        batches = in_batches(read_input(files, cfg, *output.place))
        done = sum(size for _, size in files[: output.place[0]])
        bar = progress_bar(total=size, initial=done, unit="B", unit_scale=True, disable=not progress)
        with bar, contextlib.closing(encode(batches, tokenizer, workers)) as encoded:
            for batch, tokens, lengths in encoded:
                output.write(batch, tokens, lengths)
                bar.update(batch[-1].position - bar.n)
                if output.full:
                    break
        output.finish(tokenizer)
    if progress:
        documents, tokens, size = (sum(r[k] for r in output.splits.values()) for k in ("documents", "tokens", "bytes"))
        counts = f"{documents:,} documents, {tokens:,} tokens, {size / tokens:.2f} bytes per token"
        print(f"{Path(out).name}: {counts}, {time.perf_counter() - started:.1f} s")
    return output.meta


def prepare_embedded():
    """Prepare the embedded corpus with the embedded tokenizer, as train.py does when its default data are missing."""
    return prepare("embedded", EMBEDDED_FOLDER, val_fraction=0.05)


def main():
    cfg = configurator.load(__file__, sys.argv[1:], check, "python -m data.prepare")
    try:
        prepare(**cfg)
    except KeyboardInterrupt:
        sys.exit("interrupted")
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
