"""Make the public text of the small studies: novels and other prose of the public domain as paragraphs and headings.

    git clone https://github.com/mlschmitt/classic-books-markdown
    python docs/results/books.py classic-books-markdown books

The repository is read at COMMIT, so the clone must have it. books.json names each of its books: with the year in which
it was published, and the year at the latest of its English text if that is a translation, or with the reason why it is
left out. What stays was published before 1931, so it is in the public domain in the United States.

Markdown, notes, rules and the header of a book are left out. Paragraphs are separated by a blank line, books by two.
Lines of verse stay lines. A hash of a book's path decides whether it is in train.txt or valid.txt. books.tiktoken is a
tokenizer trained on train.txt (it needs the package `tokenizers`).
"""

import hashlib
import html
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from data.tokenizer import BYTE_CHARACTERS, PATTERN, byte_level_bpe, rank_file

COMMIT = "944882722e"
SOURCES = Path(__file__).with_suffix(".json")
LAST_YEAR = 1930  # of publication
VALIDATION = 50  # one in about so many books is for validation
VOCABULARY = 8192  # with four special tokens
NOTE = re.compile(  # [Footnote: ...], [12], {see page 3}
    r"\[\W*(?:foot|transcriber.{0,3}|editor.{0,3} )?(?:note|illustration)\b[^\]]*\]|\[\d+\]|\{[^}]*\}", re.IGNORECASE
)
RULES = [  # (what, by what), in turn, in each paragraph
    (NOTE, ""),
    (r"\\([^\w\s])", r"\1"),  # escapes
    (r"(?m)^\s*(?:#+|>)\s*", ""),  # headings keep their words
    (r"(?<!_)_([^_]+)_(?!_)", r"\1"),
    (r"\*", ""),  # bold, and marks of notes
    (r" +([.,;:!?])", r"\1"),  # where a note or a closing underscore was
    (r"[ \t]+", " "),
    (r"(?m)^ | $", ""),
]


def git(clone, *arguments):
    """Return what a git command writes, as text."""
    result = subprocess.run(["git", "-C", clone, *arguments], stdout=subprocess.PIPE)
    if result.returncode:  # git has said why
        sys.exit(f"{clone}: expected a clone that has commit {COMMIT}: see the usage in {__file__}")
    return result.stdout.decode("utf-8")


def convert(markdown):
    """Return a book as text: its paragraphs and headings."""
    text = html.unescape(markdown).replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "").replace("\xa0", " ")
    header, rule, text = text.partition("\n-------\n")  # title, author and year
    assert rule, header[:100]
    kept = []
    for paragraph in re.split(r"\n\s*\n", text):
        if not paragraph.lstrip().startswith("* "):  # a note, or a rule such as * * *
            for what, by in RULES:
                paragraph = re.sub(what, by, paragraph)
            if re.search(r"\w", paragraph):
                kept.append(paragraph.strip())
    return "\n\n".join(kept)


def is_validation(path):
    return int(hashlib.sha256(path.encode()).hexdigest(), 16) % VALIDATION == 0


def train_tokenizer(texts):
    """Return a rank file in the way of docs/data.md."""
    from tokenizers.trainers import BpeTrainer

    bpe = byte_level_bpe(PATTERN)
    trainer = BpeTrainer(vocab_size=VOCABULARY - 4, initial_alphabet=BYTE_CHARACTERS, show_progress=False)
    bpe.train_from_iterator(texts, trainer)
    return rank_file({bytes(map(BYTE_CHARACTERS.index, token)): rank for token, rank in bpe.get_vocab().items()})


def main(clone, out):
    sources = json.loads(SOURCES.read_text(encoding="utf-8"))
    listed = git(clone, "ls-tree", "-r", "-z", "--name-only", COMMIT).split("\0")
    books = {path for path in listed if path.endswith(".md")} - {"README.md"}
    if books != {source["path"] for source in sources}:
        sys.exit(f"{clone}: its books at {COMMIT} are not those of {SOURCES.name}")
    texts = {"train.txt": [], "valid.txt": []}
    for source in sources:
        path = source["path"]
        if "left_out" in source:
            print(f"left out: {path}: {source['left_out']}")
            continue
        assert max(source["year"], source.get("english", 0)) <= LAST_YEAR, path
        name = "valid.txt" if is_validation(path) else "train.txt"
        texts[name].append(convert(git(clone, "show", f"{COMMIT}:{path}")))
    files = {name: "\n\n\n".join(each).encode() + b"\n" for name, each in texts.items()}
    files["books.tiktoken"] = train_tokenizer(texts["train.txt"])
    out.mkdir(parents=True)
    for name, content in files.items():
        (out / name).write_bytes(content)
        number = f"{len(texts[name])} books, " if name in texts else ""
        print(f"{name}: {number}{len(content):,} bytes, sha256 {hashlib.sha256(content).hexdigest()}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/results/books.py CLONE OUT")
    if Path(sys.argv[2]).exists():
        sys.exit(f"{sys.argv[2]} exists, and is not replaced: choose another folder")
    if not find_spec("tokenizers"):
        sys.exit("the package tokenizers is missing: pip install tokenizers")
    main(sys.argv[1], Path(sys.argv[2]))
