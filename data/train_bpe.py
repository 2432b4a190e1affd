"""Train a byte-level BPE and write its rank file.

    python data/train_bpe.py --source=texts/ --vocab_size=8192 --out=texts.tiktoken
    python data/prepare.py --source=texts/ --tokenizer=texts.tiktoken --out=data/prepared/texts

Needs the `tokenizers` package (requirements-extra.txt). With its defaults it made data/embedded.tiktoken.
"""

import base64
import os
import sys
from pathlib import Path

from tqdm import tqdm

import configurator
from data.hub_tokenizer import BYTE_OF
from data.shards import sync
from data.sources import find_files, read_documents
from data.tokenizer import PATTERN
from errors import DataError

source = "embedded"  # text to learn from: embedded, a file or a folder, as in data/prepare.py
text_field = "text"  # the field of a .jsonl line that holds the text
vocab_size = 4_096  # ids: the 256 bytes, one per merge, 4 special tokens; a multiple of 128, the shape of an embedding
out = "data/embedded.tiktoken"  # rank file to write
overwrite = False  # replace the rank file if there is one


def train(texts, size):
    """Learn a BPE of `size` tokens from an iterable of strings.

    Returns the ranks {token bytes: rank}, the 256 bytes first and then the merges in the order they were learned, and
    the tokenizers.Tokenizer they come from. Raises DataError if the text has too few merges.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(BYTE_OF), show_progress=False)
    model.train_from_iterator(texts, trainer)
    ranks = {bytes(map(BYTE_OF.get, token)): rank for token, rank in model.get_vocab().items()}
    if len(ranks) < size:
        raise DataError(f"the text has merges for {len(ranks)} ranks only, not for {size}: give more text")
    return ranks, model


def check(settings):
    """Yield what is wrong with the settings."""
    if (size := settings["vocab_size"]) < 384 or size % 128:
        yield f"vocab_size must be a multiple of 128 from 384, as there are 256 bytes and 4 special tokens; got {size}"
    if Path(settings["out"]).exists() and not settings["overwrite"]:
        yield f"{settings['out']} exists: choose another --out, or replace it with --overwrite=True"
    try:
        find_files(settings["source"])
    except DataError as error:
        yield str(error)
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        yield "training needs the tokenizers package: pip install tokenizers"


def main():
    settings = configurator.load(__file__, sys.argv[1:], check)
    documents = tqdm(read_documents(settings["source"], settings["text_field"]), unit=" documents", disable=None)
    out = Path(settings["out"])
    partial = out.with_name(f"{out.name}.partial-{os.getpid()}")
    try:
        ranks, _ = train(documents, settings["vocab_size"] - 4)
        tokens = sorted(ranks, key=ranks.get)
        out.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text("".join(f"{base64.b64encode(token).decode()} {ranks[token]}\n" for token in tokens))
        sync(partial)
        partial.replace(out)
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")
    finally:
        partial.unlink(missing_ok=True)
    print(f"{out}: {len(tokens):,} ranks, the last {b' '.join(tokens[-8:]).decode(errors='replace')}")


if __name__ == "__main__":
    main()
