"""Make the public text of the small studies: novels and other public-domain prose as paragraphs and headings.

    git clone https://github.com/mlschmitt/classic-books-markdown
    python docs/results/books.py classic-books-markdown books

It reads the clone at COMMIT, so the clone must have it. books.json lists each book with its year of publication, or
with the reason why it is left out. For a translation, it also has the latest possible year of the English text. The
books that stay were published before 1931, so they are in the public domain in the United States.

Markdown, notes, rules and a book's header are left out. A blank line separates paragraphs, two separate books. Verse
keeps its lines. A hash of a book's path decides whether it goes to train.txt or valid.txt. books.tiktoken is a
tokenizer trained on train.txt (this needs the package `tokenizers`).
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
VALIDATION = 50  # about one book in 50 is for validation
VOCABULARY = 8192  # including four special tokens
NOTE = re.compile(  # [Footnote: ...], [12], {see page 3}
    r"\[\W*(?:foot|transcriber.{0,3}|editor.{0,3} )?(?:note|illustration)\b[^\]]*\]|\[\d+\]|\{[^}]*\}", re.IGNORECASE
)
RULES = [  # (pattern, replacement), applied in this order to each paragraph
    (NOTE, ""),
    (r"\\([^\w\s])", r"\1"),  # escapes
    (r"(?m)^\s*(?:#+|>)\s*", ""),  # headings keep their words
    (r"(?<!_)_([^_]+)_(?!_)", r"\1"),
    (r"\*", ""),  # bold, and note marks
    (r" +([.,;:!?])", r"\1"),  # a space left by a note or an underscore
    (r"[ \t]+", " "),
    (r"(?m)^ | $", ""),
]


def git(clone, *arguments):
    """Return the output of a git command as text."""
    result = subprocess.run(["git", "-C", clone, *arguments], stdout=subprocess.PIPE)
    if result.returncode:  # git has printed why
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
    """Train a BPE tokenizer and return it as a rank file, as docs/data.md describes."""
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
        sys.exit(f"{sys.argv[2]} exists and is not replaced: choose another folder")
    if not find_spec("tokenizers"):
        sys.exit("the package tokenizers is missing: pip install tokenizers")
    main(sys.argv[1], Path(sys.argv[2]))
