"""What data/prepare.py costs, beside tiktoken alone, and what 100B tokens need at that.

In CPU time, all parts in this process and in turns, batch by batch: so whatever else the machine does meets them all,
and the figures hold for any number of cores.
"""

import pickle
import sys
import tempfile
import time
from pathlib import Path

import configurator
from data.prepare import batches, encode_texts, token_dtype
from data.shards import ShardWriter
from data.sources import find_files
from data.tokenizer import Tokenizer
from errors import DataError
from eval.bench.timing import hardware

source = "embedded"  # as in data/prepare.py
tokenizer = "embedded"  # as there
megabytes = 40  # of text, at most


def check(s):
    """Yield what is wrong with the settings."""
    for load, name in (find_files, "source"), (Tokenizer.load, "tokenizer"):
        try:
            load(s[name])
        except DataError as error:
            yield str(error)
    if s["megabytes"] < 1:
        yield f"megabytes={s['megabytes']}: must be at least 1"


def main(argv):
    s = configurator.load(__file__, argv, check)
    encoder, seconds = Tokenizer.load(s["tokenizer"]), {"tiktoken": 0.0, "workers": 0.0, "reader": 0.0}
    dtype, size, count = token_dtype(encoder), 0, 0

    def alone(texts):
        for text in texts:
            encoder.encoding.encode_ordinary(text)

    def timed(part, function, *args):
        started = time.process_time()
        result = function(*args)
        seconds[part] += time.process_time() - started
        return result

    with tempfile.TemporaryDirectory() as folder:
        writer = ShardWriter(Path(folder), "train", 10**9, {"tokens": 0, "shards": []}, dtype)
        reading = batches([(file, 0, None) for file in find_files(s["source"])[0]], 0, None, 0.01, "text", ())
        first = False  # whether tiktoken alone is first, and finds colder caches
        while size < s["megabytes"] * 1e6 and (batch := timed("reader", next, reading, None)):
            texts = timed("workers", pickle.loads, timed("reader", pickle.dumps, batch.texts))  # on their way
            if first := not first:
                timed("tiktoken", alone, texts)
            encoded = timed("workers", encode_texts, encoder, texts)
            if not first:
                timed("tiktoken", alone, texts)
            tokens, _ = timed("reader", pickle.loads, timed("workers", pickle.dumps, encoded))  # and back
            timed("reader", writer.write, tokens)
            size, count = size + sum(batch.sizes), count + len(tokens)
        timed("reader", writer.close)
    if not count:
        sys.exit(f"{s['source']}: no text")

    parts = {"tiktoken": "tiktoken's encode_ordinary alone", "workers": "a worker", "reader": "the process that reads and writes"}
    print(f"{hardware()}; {encoder.name}, {size / 1e6:.0f} MB, {size / count:.2f} bytes a token; in CPU time")
    for part, name in parts.items():
        print(f"{name:<36}{count / seconds[part] / 1e6:>8.2f}M tokens/s{seconds[part] / seconds['tiktoken']:>8.3f} of its time")
    print(f"so {seconds['tiktoken'] / (seconds['workers'] + seconds['reader']):.2f} of tiktoken's speed on the same cores")
    hours = {part: value / count * 1e11 / 3600 for part, value in seconds.items()}
    print(f"100B tokens: {size / count * 100:.0f} GB of text, {hours['workers'] + hours['reader']:.1f} core-hours, "
          f"{hours['reader']:.1f} hours at least, from {hours['workers'] / hours['reader']:.0f} workers on; "
          f"{100 * dtype.itemsize} GB of disk")
