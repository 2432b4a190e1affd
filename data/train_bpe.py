"""Train a byte-level BPE and write its rank file.

    python -m data.train_bpe --source=texts/ --vocab_size=8192 --out=texts.tiktoken
    python -m data.prepare --source=texts/ --tokenizer=texts.tiktoken --out=data/prepared/texts

Needs the `tokenizers` package (requirements-extra.txt). With its defaults it made data/embedded.tiktoken.
"""

import sys
from pathlib import Path

from tqdm import tqdm

import configurator
from data.files import write_whole
from data.sources import find_files, read_documents
from data.tokenizer import BYTE_CHARACTERS, PATTERN, byte_level_bpe, optional_package, rank_file
from errors import DataError

source = "embedded"  # text to learn from: embedded, a file or a folder, as in data/prepare.py
text_field = "text"  # the field of a .jsonl line that holds the text
vocab_size = 4_096  # ids: the 256 bytes, one per merge, 4 special tokens; a multiple of 128, the rows of an embedding
out = "data/embedded.tiktoken"  # rank file to write; must not exist


def train(texts, size):
    """Learn a BPE of `size` tokens from an iterable of strings.

    Returns {token bytes: rank}, the 256 bytes first and then the merges as they were learned. Raises DataError if the
    text has too few merges.
    """
    model = byte_level_bpe(PATTERN)
    trainers = optional_package("tokenizers").trainers
    options = {"initial_alphabet": BYTE_CHARACTERS, "show_progress": False}
    model.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=size, **options))
    vocab = model.get_vocab()
    if len(vocab) < size:
        raise DataError(f"the text has merges for {len(vocab)} ranks only, not for {size}: give more text")
    return {bytes(map(BYTE_CHARACTERS.index, token)): vocab[token] for token in sorted(vocab, key=vocab.get)}


def check(cfg):
    """Yield what is wrong with the settings."""
    if (size := cfg["vocab_size"]) < 384 or size % 128:
        yield f"vocab_size must be a multiple of 128 from 384, as there are 256 bytes and 4 special tokens; got {size}"
    if Path(cfg["out"]).exists():
        yield f"{cfg['out']} exists: choose another --out, or remove it"
    try:
        find_files(cfg["source"])
        optional_package("tokenizers")
    except (DataError, OSError) as error:
        yield str(error)


def main():
    cfg = configurator.load(__file__, sys.argv[1:], check, "python -m data.train_bpe")
    documents = tqdm(read_documents(cfg["source"], cfg["text_field"]), unit=" documents", disable=None)
    out = Path(cfg["out"])
    try:
        ranks = train(documents, cfg["vocab_size"] - 4)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, lambda file: file.write(rank_file(ranks)))
    except (DataError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"{out}: {len(ranks):,} ranks, the last {b' '.join([*ranks][-8:]).decode(errors='replace')}")


if __name__ == "__main__":
    main()
