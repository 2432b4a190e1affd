"""Make a text like that of the small studies: OpenStax textbooks as paragraphs and headings.

    git clone https://github.com/openstax/osbooks-psychology books/osbooks-psychology  # and 24 more of openstax.json
    python docs/results/openstax.py books openstax.txt

Each book is read at the commit that openstax.json names, so its clone must have this commit. Maths, tables, figures,
exercises, glossaries and footnotes are left out. Paragraphs are separated by a blank line, modules by two.
"""

import io
import json
import re
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SOURCES = Path(__file__).with_suffix(".json")
LEFT_OUT = {"math", "equation", "table", "figure", "media", "exercise", "metadata", "glossary", "footnote"}
LEFT_OUT_CLASSES = {"references"}
PARAGRAPHS = {"para", "title", "item", "quote", "list", "section", "note", "example", "equation", "table", "figure"}
PARAGRAPHS |= {"exercise", "media"}  # a paragraph ends where one of these begins or ends
SHORTEST = 200  # characters of a module that is kept


def collect(element, parts, parent=""):
    """Add the text of an element to `parts`. None separates paragraphs. The title of a paragraph stays in it."""
    name = element.tag.split("}")[-1]
    in_paragraph = name == "title" and parent == "para"
    separator = [None] if name in PARAGRAPHS and not in_paragraph else []
    parts += separator
    if name not in LEFT_OUT and element.get("class") not in LEFT_OUT_CLASSES:
        parts.append(element.text or "")
        for child in element:
            collect(child, parts, name)
            parts.append(child.tail or "")
    parts.append(" " if in_paragraph else "")
    parts += separator


def convert(xml):
    """Return the paragraphs and headings of a module in CNXML."""
    parts = []
    collect(ElementTree.fromstring(xml), parts)
    text = "".join("\n\n" if part is None else re.sub(r"\s+", " ", part) for part in parts)
    text = re.sub(r" +", " ", text)
    text = re.sub(r" +([.,;:])", r"\1", text)  # where maths or a reference to a figure was
    text = re.sub(r"\( *\)", "", text)
    paragraphs = [paragraph.strip() for paragraph in text.split("\n\n")]
    return [paragraph for paragraph in paragraphs if re.search(r"\w", paragraph)]


def modules(clone, commit):
    """Yield the CNXML of each module of a repository at a commit, in the order of their names."""
    command = ["git", "-C", str(clone), "archive", commit, "modules"]
    archive = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for name in sorted(files.getnames()):
            if name.endswith("index.cnxml"):
                yield files.extractfile(name).read()


def main(books, out):
    texts = []
    for source in json.loads(SOURCES.read_text()):
        clone = Path(books, source["repo"].split("/")[1])
        converted = ["\n\n".join(convert(xml)) for xml in modules(clone, source["commit"])]
        kept = [text for text in converted if len(text) >= SHORTEST]
        print(f"{clone.name}: {len(kept)} modules; the studies' text has {source['modules_kept']}")
        texts += kept
    Path(out).write_text("\n\n\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python docs/results/openstax.py FOLDER_OF_CLONES OUT.txt")
    main(*sys.argv[1:])
