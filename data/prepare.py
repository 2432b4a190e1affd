"""Turn text into shards of token ids.

    python -m data.prepare                                    # the embedded corpus: no download, seconds
    python -m data.prepare --source=texts/ --tokenizer=gpt2 --out=data/prepared/texts

docs/data.md lists the sources and tokenizers, and what the prepared folder holds. In short: train-00000.bin, ... and
val-00000.bin, ... with raw token ids, one document after the other, each ended by eos; the tokenizer; and meta.json.

The input is cut into pieces of about equal size, between documents. A worker turns a piece into a shard of each split
and a record. The pieces are independent, so they can be made in any order and on several machines:

    files -> cut_into_pieces -> encode_piece, for each in OUT.partial -> data.writing.join -> OUT

After a kill or an error, the same command makes what is missing. The tokens do not depend on who makes the pieces.
"""

import concurrent.futures
import contextlib
import functools
import hashlib
import itertools
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
from pathlib import Path

from errors import DataError, exit_with_message, progress  # first: it says what to install

# isort: split
import numpy as np

import configurator
from data.files import refuse_existing
from data.shards import EMBEDDED_FOLDER, digest, token_dtype
from data.sources import cut_places, find_files, read_file
from data.tokenizer_files import read_tokenizer
from data.writing import join, make_piece, unfinished_folder, write_shards

source = "embedded"  # embedded (English that comes with the project), a file or a folder
val_fraction = 0.01  # of the documents, chosen by a hash of the text, are for validation; below 0.5
text_field = "text"  # the field that holds the text, in JSON lines and .parquet
max_tokens = 0  # stop before the document with which the train split would exceed this; 0 = no limit
tokenizer = "embedded"  # embedded (4,096 ids), a tiktoken encoding (gpt2, ...), a rank file, or a hub folder
out = "data/prepared/embedded"  # folder to write; must not exist
shard_bytes = 0  # bytes of text that become a shard; 0 = a 256th of the source, from 4 MB to 256 MB
workers = 0  # processes that encode; 0 = one per core, but one for each 4 MB of text at most
part = ""  # 3/16: make the third sixteenth of the shards; the command without it makes the others and completes `out`

LIMITS = [
    ("above", 0, "val_fraction"),
    ("below", 0.5, "val_fraction"),
    ("at least", 0, "shard_bytes workers max_tokens"),
]
SMALLEST = 4 << 20  # bytes of the text of a shard, if shard_bytes is 0
LARGEST = 256 << 20

# ---------------------------------------------------------------------------------------------------------------------
# The plan


def cores():
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def size_and_time(path):
    """Return the size of a file in bytes, and its modification time in ns."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def cut_into_pieces(files, size):
    """Yield the pieces of about `size` bytes of text, each a list of ranges: (index of the file, start, end).

    files: {path: its size and time}. The pieces depend on files and size alone, so all machines cut alike.
    """
    piece = []
    filled = 0
    for index, (path, (file_size, _)) in enumerate(files.items()):
        for start, end in itertools.pairwise(cut_places(path, size)):
            piece.append((index, start, end))
            filled += min(end, file_size) - start
            if filled > size / 2:
                yield piece
                piece = []
                filled = 0
    if piece:
        yield piece


def part_of(text, setting="part="):
    """Return (3, 16) for "3/16", and (1, 1) for "". Raises DataError, whose message begins with `setting`."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "1/1")
    number, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= number <= count:
        raise DataError(f"{setting}{text}: expected a number and how many parts there are, from 1/16 to 16/16")
    return number, count


# ---------------------------------------------------------------------------------------------------------------------
# One piece


def encode_piece(folder, files, tokenizer, cfg, number, ranges):
    """Make the shards of a piece and its record, if they are not there. Returns the record; see `write_shards`."""
    return make_piece(folder, number, encoded_documents(files, tokenizer, cfg, ranges))


def encoded_documents(files, tokenizer, cfg, ranges, limit=math.inf):
    """Yield (split, tokens, bytes of text) for each document of a piece. A document without text has no tokens.

    A hash of the text chooses the split, so that a document keeps it when the corpus grows. The piece ends before the
    document with which train would have more than `limit` tokens. Raises DataError if a file has changed.
    """
    dtype = token_dtype(tokenizer.vocab_size)
    eos = np.array([tokenizer.eos_id], dtype)
    paths = list(files)
    for index, start, end in ranges:
        path = paths[index]
        for text in read_file(path, cfg.text_field, start, end):
            if not text:
                yield "train", eos[:0], 0
                continue
            data = text.encode("utf-8", "surrogatepass")  # JSON may hold half a surrogate pair
            draw = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") / 2**64
            split = "val" if draw < cfg.val_fraction else "train"
            try:
                tokens = np.append(tokenizer.encode_array(text).astype(dtype), eos)
            except DataError as error:
                raise DataError(f"{path}: {error}") from error
            limit -= len(tokens) * (split == "train")
            if limit < 0:
                return
            yield split, tokens, len(data)
        if size_and_time(path) != files[path]:
            raise DataError(f"{path} has changed since the preparation began: choose another --out")


# ---------------------------------------------------------------------------------------------------------------------
# All pieces


def make_pieces(make, pieces, workers):
    """Yield make(*piece) of each piece in order, made by `workers` processes. One worker means this process."""
    workers = min(workers, len(pieces))
    if workers <= 1:
        yield from itertools.starmap(make, pieces)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
    alive, parent = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, start_worker, [make, alive])
    try:
        yield from pool.map(make_in_worker, pieces)
    except concurrent.futures.BrokenExecutor:
        raise DataError("a worker process was killed, perhaps because memory ran out: give fewer --workers") from None
    finally:
        parent.close()  # ends the workers
        pool.shutdown(cancel_futures=True)


def start_worker(make, alive):
    """Keep `make` for make_in_worker(), and end this process when its parent is killed or closes its end of `alive`."""
    global make_here
    make_here = make
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C

    def exit_with_parent():
        alive.poll(None)  # returns when it is closed
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()


def make_in_worker(piece):
    return make_here(*piece)


# ---------------------------------------------------------------------------------------------------------------------
# Everything together


def check(cfg):
    """Yield what is wrong with the settings, a sentence each."""
    for load, *values in (
        (refuse_existing, cfg.out),
        (find_files, cfg.source, cfg.text_field),
        (read_tokenizer, cfg.tokenizer),
        (part_of, cfg.part),
    ):
        try:
            load(*values)
        except (DataError, OSError) as error:  # the latter: a name that is too long, a folder that cannot be read
            yield str(error)
    yield from configurator.value_problems(cfg, LIMITS)


def prepare(source, out, tokenizer="embedded", **settings):
    """Encode `source` into the folder `out` and return its meta.json, or None with `part`, which leaves OUT.partial.

    The settings are those at the top of this file. For more than 4 MB, the calling script needs the
    `if __name__ == "__main__":` that multiprocessing asks for. Raises DataError for bad input and OSError where the
    disk fails; `out` is then as before.
    """
    cfg = configurator.load(__file__, [])
    cfg.update(settings, source=str(source))
    out = Path(out)
    tokenizer = read_tokenizer(tokenizer)
    found, left_out = find_files(cfg.source, cfg.text_field)
    print(f"{cfg.source}: files to read: {len(found)}")
    for why, paths in left_out.items():
        print(f"left out: {len(paths)}, such as {paths[0]}: {why}")
    sample = "".join(itertools.islice(read_file(found[0], cfg.text_field), 100))[:100_000]
    if lost := {*sample} - {*tokenizer.decode(tokenizer.encode(sample))}:
        print(f"characters in the first documents that the tokenizer changes or drops: {sorted(lost)!s:.200}")

    files = {path: size_and_time(path) for path in found}
    size = sum(size for size, _ in files.values())
    pieces = list(cut_into_pieces(files, cfg.shard_bytes or min(max(size // 256, SMALLEST), LARGEST)))
    workers = cfg.workers or min(cores(), size // SMALLEST + 1)
    # What decides the content of a piece. Folders may have other names on other machines.
    inputs = [(os.path.relpath(path, found[0].parent), *status) for path, status in files.items()]
    plan = digest([inputs, pieces, tokenizer.state(), tokenizer.content.hex(), cfg.val_fraction, cfg.text_field])[:16]
    number, parts = part_of(cfg.part)
    mine = list(enumerate(pieces))[number - 1 :: parts]
    with unfinished_folder(out, plan, cfg.part) as folder:
        make = functools.partial(encode_piece, folder, files, tokenizer, cfg)
        records = []
        limit = cfg.max_tokens / parts or math.inf
        bar = progress(total=len(mine), unit="shards")
        with bar, contextlib.closing(make_pieces(make, mine, workers)) as finished:
            for record in finished:
                if record["train"]["tokens"] > limit:
                    break
                limit -= record["train"]["tokens"]
                records.append(record)
                bar.update()
        if cfg.part:
            return None
        is_full = len(records) < len(pieces)
        if is_full:
            number, ranges = mine[len(records)]
            # This part of a piece no longer matches its record, so after a kill it is made again.
            records.append(write_shards(folder, number, encoded_documents(files, tokenizer, cfg, ranges, limit)))
        meta = join(out, folder, records, tokenizer, cfg, is_full)
    for name, split in meta["splits"].items():
        print(
            f"{out.name}, {name}: {split['documents']:,} documents, {split['tokens']:,} tokens, "
            f"{split['bytes'] / split['tokens']:.2f} bytes per token"
        )
        if split["empty"]:
            print(f"left out: {split['empty']:,} documents without text")
    return meta


def prepare_embedded(data):
    """Prepare the embedded corpus with the embedded tokenizer, if `data` is its folder and it is not there yet."""
    if data == EMBEDDED_FOLDER and not Path(data).exists():
        prepare("embedded", data, val_fraction=0.05)


@exit_with_message()
def main():
    prepare(**configurator.load(__file__, sys.argv[1:], check, "python -m data.prepare"))


if __name__ == "__main__":
    main()
