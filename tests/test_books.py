"""The public text of docs/results/books.py, from a small repository."""

import json
import subprocess
import sys

from helpers import ROOT

sys.path.insert(0, str(ROOT / "docs/results"))
import books

HEADER = "# Title: A\n\n## Author: B\n\n## Year: 1900\n\n-------\n\n"
CONVERTED = {  # paragraphs of a book, and what is left of them
    "##  Chapter 1 \r\n\r\n\r\nOne.\r\n": "Chapter 1\n\nOne.",  # one blank line, whatever the file has
    "**Bold** and _soft_ , *both*.\n\n> said": "Bold and soft, both.\n\nsaid",
    "1 [12] two[Footnote: no] {p. 13}.\n\n* A note.\n\n[Transcriber's Note: no]": "1 two.",
    "One.\n\n* * *\n\n-------\n\n****\n\nTwo.": "One.\n\nTwo.",
    "\\- £5\\. a &amp; b\u00a0c\ufeff": "- £5. a & b c",
    "Verse,  \nits lines\n": "Verse,\nits lines",
    "A [Gen. 2:1] b {unclosed\n\nnext} c": "A [Gen. 2:1] b {unclosed\n\nnext} c",  # a note ends in its paragraph
    "No. ___ and 18__": "No. ___ and 18__",
}


def test_books_of_the_list_are_converted_in_its_order_and_the_others_named(tmp_path, monkeypatch, capsys):
    texts = {f"{i}.md": str(i) for i in range(10, 70)} | {"10.md": "\n\n".join(CONVERTED), "late.md": ""}
    sources = [{"path": path, "year": 1900} for path in texts]
    sources[-1]["left_out"] = "it is late"
    clone, listed = tmp_path / "clone", tmp_path / "books.json"
    clone.mkdir()
    for path, text in texts.items():
        (clone / path).write_text(HEADER + text)
    listed.write_text(json.dumps(sources))
    commit = "git init -q && git add . && git -c user.name=a -c user.email=a@b commit -qm a"
    subprocess.run(commit, shell=True, cwd=clone, check=True)
    monkeypatch.setattr(books, "COMMIT", "HEAD")
    monkeypatch.setattr(books, "SOURCES", listed)
    monkeypatch.setattr(books, "train_tokenizer", lambda texts: b"")
    books.main(str(clone), tmp_path / "out")
    assert "left out: late.md: it is late\ntrain.txt: " in capsys.readouterr().out
    train = [str(i) for i in range(11, 70) if i not in (27, 54, 56)]
    expected = "\n\n\n".join(["\n\n".join(CONVERTED.values()), *train]) + "\n"
    assert (tmp_path / "out/train.txt").read_text() == expected
    assert (tmp_path / "out/valid.txt").read_text() == "27\n\n\n54\n\n\n56\n"
