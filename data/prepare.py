"""Text to shards of token ids.

    python data/prepare.py                                    # the embedded corpus: no download, seconds
    python data/prepare.py --source=texts/ --tokenizer=gpt2 --out=data/prepared/texts

A source is a file or a folder (read recursively, in sorted order) of .txt, .md and .jsonl, each also .gz. In text, one
blank line separates paragraphs and two or more separate documents; in .jsonl each line is a document. The folder that
is written holds

    train-00000.bin, ..., val-00000.bin, ...    token ids, raw little-endian uint16 or uint32 (meta.json: dtype): the
                                                documents one after the other, each ended by eos
    tokenizer.tiktoken                          the ranks of the tokenizer
    meta.json                                   the rest of the tokenizer, counts, shards and their checksums

It is whole or absent: written aside, synced, renamed.
"""

import collections
import concurrent.futures
import contextlib
import errno
import glob
import hashlib
import json
import multiprocessing
import os
import platform
import re
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import configurator
from data.sources import READABLE, find_files, read_documents
from data.tokenizer import DataError, Tokenizer

source = "embedded"  # embedded (English that comes with Python), a file, or a folder
val_source = ""  # the same for validation; empty: a share of the documents of source, chosen by a hash of their text
val_fraction = 0.01  # that share, below 0.5
text_field = "text"  # the field of a .jsonl line that holds the text
tokenizer = "embedded"  # embedded (4,096 ids), a tiktoken encoding (gpt2, ...), a rank file, or a hub folder
mask_token = ""  # with a hub folder: its special token to mask with; empty: the one it names, a reserved or a new one
out = "data/prepared/embedded"  # folder to write
overwrite = False  # replace that folder, if it is a prepared one
shard_tokens = 1_000_000_000  # tokens per shard; the last one has the rest
workers = 0  # processes that encode; 0 = one per core, and none for a few MB of text
verify = ""  # a prepared folder whose checksums to check; nothing is prepared then

# ---------------------------------------------------------------------------------------------------------------------
# Encoding, in the order of the input and with a bounded number of batches in memory

BATCH_BYTES = 1 << 20  # text that a worker gets at a time
POOL_BYTES = 8 << 20  # a smaller source is encoded before a pool of processes is up


def batches(documents, meta, val_fraction):
    """Yield {split: texts} of about BATCH_BYTES from (split, text) pairs and count in meta["splits"].

    A split of None is drawn from the content, so that a document keeps its split when the corpus grows.
    """
    batch, size = {"train": [], "val": []}, 0
    for split, text in documents:
        if not text.strip():
            meta["skipped_empty"] += 1
            continue
        data = text.encode("utf-8", "surrogatepass")  # JSON may hold half a surrogate pair; tiktoken replaces it
        if split is None:
            draw = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
            split = "val" if draw < val_fraction else "train"
        meta["splits"][split]["documents"] += 1
        meta["splits"][split]["bytes"] += len(data)
        batch[split].append(text)
        size += len(data)
        if size >= BATCH_BYTES:
            yield batch
            batch, size = {"train": [], "val": []}, 0
    yield batch


def token_dtype(tokenizer):
    return np.dtype("<u2" if tokenizer.vocab_size <= 1 << 16 else "<u4")


def encode_batch(tokenizer, batch):
    """{split: texts} -> {split: (tokens,) array}, eos after each text."""
    arrays = {}
    for split, texts in batch.items():
        ids = []
        for text in texts:
            ids += tokenizer.encode(text)
            ids.append(tokenizer.eos_id)
        arrays[split] = np.array(ids, token_dtype(tokenizer))
    return arrays


def encode(batches, tokenizer, workers):
    """Yield encode_batch of each batch, in order; with two workers or more, in as many processes."""
    if workers == 1:
        for batch in batches:
            yield encode_batch(tokenizer, batch)
        return
    # Each thread of the pool hands its batches to a process of its own and waits for the result.
    pool = concurrent.futures.ThreadPoolExecutor(workers, initializer=start_worker, initargs=(tokenizer,))
    pending = collections.deque()
    try:
        for batch in batches:
            pending.append(pool.submit(ask_worker, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
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


def ask_worker(batch):
    this_thread.worker.send(batch)
    return this_thread.worker.recv()


def work(connection):
    """A worker process. It ends when nobody holds the other end of the connection: also if the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    with contextlib.suppress(EOFError, ConnectionError):
        tokenizer = connection.recv()
        while True:
            connection.send(encode_batch(tokenizer, connection.recv()))


# ---------------------------------------------------------------------------------------------------------------------
# Writing


class ShardWriter:
    """Writes arrays of tokens to <split>-00000.bin, <split>-00001.bin, ... of shard_tokens tokens each, the last one
    excepted, and lists them in `record`, the entry of the split in meta["splits"]."""

    def __init__(self, folder, split, shard_tokens, record):
        self.folder, self.split, self.shard_tokens, self.record = folder, split, shard_tokens, record
        self.file = None

    def write(self, tokens):
        self.record["tokens"] += len(tokens)
        while len(tokens):
            if self.file is None:
                self.path = self.folder / f"{self.split}-{len(self.record['shards']):05d}.bin"
                self.file, self.tokens, self.sha256 = open(self.path, "wb"), 0, hashlib.sha256()
            room = self.shard_tokens - self.tokens
            part, tokens = tokens[:room], tokens[room:]
            self.file.write(part)
            self.sha256.update(part)
            self.tokens += len(part)
            if self.tokens == self.shard_tokens:
                self.close()

    def close(self):
        if self.file is not None:
            self.file.close()
            sync(self.path)
            shard = {"file": self.path.name, "tokens": self.tokens, "sha256": self.sha256.hexdigest()}
            self.record["shards"].append(shard)
            self.file = None


def sync(path):
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def fingerprint(meta, rank_bytes):
    """One checksum of all that a training run reads: the tokenizer and the shards."""
    shards = [shard["sha256"] for split in ("train", "val") for shard in meta["splits"][split]["shards"]]
    parts = [meta["tokenizer"], hashlib.sha256(rank_bytes).hexdigest(), shards]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def remove_leftovers(out):
    """Remove what preparations of `out` that were killed have left beside it."""
    for folder in out.parent.glob(f"{glob.escape(out.name)}.partial-[0-9]*"):
        try:
            os.kill(int(re.search(r"\.partial-(\d+)", folder.name)[1]), 0)  # signal 0 only asks for the process
        except ProcessLookupError:
            shutil.rmtree(folder)
        except PermissionError:  # it runs, for another user
            pass


def problems(settings):
    """Yield what is wrong with the arguments of prepare(), given as a dict."""
    folder = Path(settings["out"])
    if folder.exists() and not settings["overwrite"]:
        yield f"{folder} exists: choose another --out, or replace it with --overwrite=True"
    elif folder.exists() and not (folder / "meta.json").is_file():
        yield f"{folder} exists and is not a prepared folder (it has no meta.json), so it is not replaced"
    for load, *names in (find_files, "source"), (find_files, "val_source"), (Tokenizer.load, "tokenizer", "mask_token"):
        try:
            if settings[names[0]] or names[0] != "val_source":
                load(*(settings[name] for name in names))
        except DataError as error:
            yield str(error)
    if not 0 < settings["val_fraction"] < 0.5:
        yield f"val_fraction must be above 0 and below 0.5, got {settings['val_fraction']}"
    if settings["shard_tokens"] < 1:
        yield f"shard_tokens must be at least 1, got {settings['shard_tokens']}"
    if settings["workers"] < 0:
        yield f"workers must be 0 (one per core) or more, got {settings['workers']}"


def prepare(source, out, tokenizer="embedded", val_source="", val_fraction=0.01, shard_tokens=1_000_000_000, workers=0,
            text_field="text", overwrite=False, mask_token="", progress=True):
    """Encode `source` into the folder `out` and return its meta; the arguments are the settings at the top.

    Above POOL_BYTES, or with workers > 1, the calling script needs the `if __name__ == "__main__":` that
    multiprocessing asks for. Raises DataError for bad input, OSError where the disk fails; `out` is then as before.
    """
    if wrong := list(problems(locals())):
        raise DataError("\n".join(wrong))
    started, tokenizer, out = time.perf_counter(), Tokenizer.load(tokenizer, mask_token), Path(out).absolute()
    sources = [(source, "train"), (val_source, "val")] if val_source else [(source, None)]
    found = [find_files(name) for name, _ in sources]
    if ignored := [file for _, files in found for file in files]:
        print(f"{len(ignored)} files are ignored, such as {ignored[0]}; read are {READABLE}")
    size = sum(file.stat().st_size for files, _ in found for file in files)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = workers or (1 if size < POOL_BYTES else cores)
    meta = {
        "format": 1,
        "tokenizer": tokenizer.state(),
        "dtype": token_dtype(tokenizer).name,
        "splits": {split: {"documents": 0, "tokens": 0, "bytes": 0, "shards": []} for split in ("train", "val")},
        "skipped_empty": 0,
        "source": str(source),
        "python": platform.python_version(),
    }
    splits = meta["splits"]
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    replaced = out.with_name(f"{partial.name}-replaced")
    remove_leftovers(out)
    shutil.rmtree(partial, ignore_errors=True)  # of a killed process that had the same id
    try:
        partial.mkdir(parents=True)
        writers = {split: ShardWriter(partial, split, shard_tokens, splits[split]) for split in splits}
        with tqdm(total=size or None, unit="B", unit_scale=True, disable=None if progress and size else True) as bar:
            documents = ((split, text) for name, split in sources for text in read_documents(name, text_field, bar))
            with contextlib.closing(encode(batches(documents, meta, val_fraction), tokenizer, workers)) as encoded:
                for arrays in encoded:
                    for split, array in arrays.items():
                        writers[split].write(array)
                    tokens = splits["train"]["tokens"] + splits["val"]["tokens"]
                    speed = tokens / (time.perf_counter() - started)
                    bar.set_postfix_str(f"{speed / 1e6:.2f}M tokens/s", refresh=False)
        for split in splits:
            writers[split].close()
            if not splits[split]["documents"]:
                count = splits["train"]["documents"] + splits["val"]["documents"]
                raise DataError(
                    f"no document is left for the {split} split: {count} found, two blank lines apart in text; "
                    f"give another val_source, or a larger val_fraction than {val_fraction}"
                )
        meta["fingerprint"] = fingerprint(meta, tokenizer.rank_bytes())
        (partial / "tokenizer.tiktoken").write_bytes(tokenizer.rank_bytes())
        (partial / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        for path in (partial / "tokenizer.tiktoken", partial / "meta.json", partial):
            sync(path)
        if out.exists():
            out.rename(replaced)
        partial.rename(out)
        sync(out.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk is full: {out} was not written, what there was of it is removed") from error
        raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if replaced.exists() and not out.exists():  # stopped between the two renames
            replaced.rename(out)
        shutil.rmtree(replaced, ignore_errors=True)
    if progress:
        count, size = (splits["train"][key] + splits["val"][key] for key in ("documents", "bytes"))
        print(f"{out.name}: {count:,} documents, {tokens:,} tokens, {size / tokens:.2f} bytes per token, "
              f"{tokens / speed:.1f} s, {speed / 1e6:.2f}M tokens/s")
    return meta


# ---------------------------------------------------------------------------------------------------------------------
# Reading what was written


def load_meta(folder):
    """Return the meta.json of a prepared folder after a look at the sizes of its shards (for their content, see
    verify_folder). Raises DataError if the folder is missing, is something else, or has lost a part."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; prepare it: python data/prepare.py --source=... --out={folder}")
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        raise DataError(f"{folder} is not a folder that data/prepare.py has written: no readable meta.json") from None
    if meta.get("format") != 1:
        raise DataError(f"{folder} has format {meta.get('format')}, known is 1: prepare it again with --overwrite=True")
    for record in meta["splits"].values():
        for shard in record["shards"]:
            path, size = folder / shard["file"], shard["tokens"] * np.dtype(meta["dtype"]).itemsize
            if not path.is_file() or path.stat().st_size != size:
                raise DataError(f"{path} is missing or not {size} bytes long: prepare it again with --overwrite=True")
    return meta


def verify_folder(folder):
    """Raise DataError unless all checksums of a prepared folder are right."""
    meta = load_meta(folder)
    for record in meta["splits"].values():
        for shard in record["shards"]:
            content = np.memmap(Path(folder, shard["file"]), mode="r")
            if hashlib.sha256(content).hexdigest() != shard["sha256"]:
                raise DataError(f"{Path(folder, shard['file'])} has changed since it was written: prepare it again")
    if fingerprint(meta, Path(folder, "tokenizer.tiktoken").read_bytes()) != meta["fingerprint"]:
        raise DataError(f"{folder}: the tokenizer or meta.json has changed since it was written: prepare it again")


def check(settings):
    return [] if settings["verify"] else problems(settings)


def terminate(signum, frame):
    raise SystemExit(128 + signum)  # unlike the default, it lets prepare() clean up


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
        sys.exit("interrupted: nothing was written")
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
