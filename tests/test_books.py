"""The public text of docs/results/books.py, from a small repository."""

import json
import subprocess
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "docs/results"))
import books

HEADER = "# Title: A\n\n## Author: B\n\n## Year: 1900\n\n-------\n\n"


@pytest.mark.parametrize("markdown, text", [
    ("##  Chapter 1 \r\n\r\n\r\nOne.\r\n", "Chapter 1\n\nOne."),  # one blank line, whatever the file has
    ("**Bold** and _soft_ , *both*.\n\n> said", "Bold and soft, both.\n\nsaid"),
    ("One [12] two[Footnote: no] three {p. 13}.\n\n* A note.\n\n[Transcriber's Note: no]", "One two three."),
    ("One.\n\n* * *\n\n-------\n\n****\n\nTwo.", "One.\n\nTwo."),
    ("\\- £5\\. a &amp; b\u00a0c\ufeff", "- £5. a & b c"),
    ("Verse,  \nits lines\n", "Verse,\nits lines"),
    ("A [Gen. 2:1] b {unclosed\n\nnext} c", "A [Gen. 2:1] b {unclosed\n\nnext} c"),  # a note ends in its paragraph
    ("No. ___ and 18__", "No. ___ and 18__"),
])  # fmt: skip
def test_markdown_and_notes_are_left_out(markdown, text):
    assert books.convert(HEADER + markdown) == text


def test_books_of_the_list_are_kept_in_its_order_and_the_others_named(tmp_path, monkeypatch, capsys):
    sources = [{"path": f"{i}.md", "year": 1900} for i in range(10, 70)] + [{"path": "late.md", "left_out": "late"}]
    clone, listed = tmp_path / "clone", tmp_path / "books.json"
    clone.mkdir()
    for source in sources:
        (clone / source["path"]).write_text(HEADER + source["path"])
    commit = "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm a"
    subprocess.run(commit, shell=True, cwd=clone, check=True)
    listed.write_text(json.dumps(sources))
    monkeypatch.setattr(books, "COMMIT", "HEAD")
    monkeypatch.setattr(books, "SOURCES", listed)
    monkeypatch.setattr(books, "train_tokenizer", lambda texts: b"")
    for out in (tmp_path / "a", tmp_path / "b"):
        books.main(str(clone), out)
    assert "left out: late.md: late\ntrain.txt: " in capsys.readouterr().out
    kept = [(tmp_path / "a" / name).read_text() for name in ("train.txt", "valid.txt")]
    assert sorted("".join(kept).split()) == [f"{i}.md" for i in range(10, 70)]
    assert (tmp_path / "a/train.txt").read_bytes() == (tmp_path / "b/train.txt").read_bytes()
    listed.write_text(json.dumps(sources[1:]))
    with pytest.raises(SystemExit, match="are not those of books.json"):
        books.main(str(clone), tmp_path / "c")


def test_every_book_of_the_list_has_a_year_before_1931_or_a_reason():
    sources = json.loads(books.SOURCES.read_text(encoding="utf-8"))
    paths = [source["path"] for source in sources]
    assert paths == sorted({*paths}) and len(paths) == 756
    for source in sources:
        assert source.get("left_out") or max(source["year"], source.get("english", 0)) <= 1930, source
