"""Read the documents of files and folders.

A reader takes a file, the name of the field that holds the text, and a range of the file, [start, end), between two
places that `cut_places` returns. For each document that begins in the range it yields

    (place, record)       "line 7" or "row 7", {field: value}

The first bytes of a file decide its format, and its name only where they leave it open. To support another format,
write a reader and add it to READERS.
"""

import codecs
import gzip
import io
import itertools
import json
import os
import re
import sys
from collections import defaultdict
from pathlib import Path

from data.files import foreign
from data.tokenizer import optional_package
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "python-docs.jsonl.gz"  # the text that comes with the project
PARQUET_ROWS = 16  # rows of a parquet file in memory at a time
END = sys.maxsize  # of a range: the end of the file


def read_text(path, field, start, end):
    """Read plain text: one blank line separates paragraphs, two or more separate documents."""
    lines, first, blank = [], 1, 0  # of the document so far, the first one's number; blank lines since the last
    for number, line in itertools.chain(read_lines(path, start, end), [(0, b"")] * 2):  # ends the last document
        if line.strip():
            if not lines:
                first = number
            elif blank:
                lines.append(b"")
            lines.append(line)
            blank = 0
        else:
            blank += 1
            if blank == 2 and lines:
                yield f"line {first}", {field: decode(b"\n".join(lines), first)}
                lines = []


def read_jsonl(path, field, start, end):
    """Read JSON lines: each line holds one document, an object with the field."""
    for number, line in read_lines(path, start, end):
        if line.strip():
            yield f"line {number}", json_object(decode(line, number), f"line {number}")


def json_object(text, location):
    """Return the JSON object in a text. location: of the text, for error messages."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: lists or objects are nested too deep
        fault = str(error).replace("line 1 ", "")  # the line within the text
        raise DataError(f"{location}: cannot be read as JSON: {fault}") from None
    if not isinstance(record, dict):
        raise DataError(f"{location}: expected a JSON object, got a {type(record).__name__} (jq -c .[] splits a list)")
    return record


def read_lines(path, start, end):
    """Yield (number, line without its line break) of a range.

    The first line of a file is 1. A range that begins later counts from 2, because `decode` treats line 1 differently.
    """
    with open_lines(path) as lines:
        if start > 0:  # then it is not compressed
            lines.seek(start)
        elif what := foreign(lines.peek()):
            raise DataError(f"it is {what}")
        position = start
        for number, line in enumerate(lines, 1 if start == 0 else 2):
            if position >= end:
                break
            position += len(line)
            yield number, line.removesuffix(b"\n")


def open_lines(path):
    """Open a file for reading, decompressed if its content is gzip or zstd, whatever its name."""
    with open(path, "rb") as file:
        head = file.read(4)
    if head.startswith(b"\x1f\x8b"):
        return io.BufferedReader(gzip.open(path))
    if head in (b"\x28\xb5\x2f\xfd", b"P*M\x18"):
        return io.BufferedReader(optional_package("pyarrow").CompressedInputStream(path, "zstd"))
    return open(path, "rb")


def decode(data, first):
    """Decode lines of UTF-8. first: the number of the first line."""
    data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if first == 1:
        data = data.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with a byte-order mark
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number = first + data.count(b"\n", 0, error.start)
        raise DataError(
            f"line {number}: byte 0x{data[error.start]:02x} is not UTF-8: if all of the file is Latin-1, convert it "
            "(iconv -f LATIN1 -t UTF-8), otherwise fix the line"
        ) from None


def read_parquet(path, field, start, end):
    """Read parquet: each row holds one document. Only a few pages are in memory, however large a row group is."""
    parquet = optional_package("pyarrow.parquet")

    with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        columns = [field] if field in file.schema_arrow.names else None  # all: read_file() lists their names
        number = 0
        for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
            for number, record in enumerate(batch.to_pylist(), number + 1):
                yield f"row {number}", record


# ---------------------------------------------------------------------------------------------------------------------
# Ranges of a file


def cut_places(path, size):
    """Return [0, ..., END]: places where documents of a file begin, about `size` bytes apart.

    Compressed files and parquet have only these two. The places depend on the content alone. The ranges between them
    have all documents of the file, each once.
    """
    places = [0]
    reader = reader_of(path)
    with open_lines(path) as lines:
        if reader is not read_parquet and isinstance(lines.raw, io.FileIO):  # not compressed
            while place := next_document(lines, places[-1] + size, 0 if reader is read_jsonl else 2):
                places.append(place)
    return [*places, END]


def next_document(file, position, blank_lines):
    """Return where the first document after the line at `position` begins, or None if there is none.

    blank_lines: how many blank lines must come before it.
    """
    file.seek(position)
    file.readline()  # the rest of a line
    seen = 0
    while line := file.readline():
        if not line.strip():
            seen += 1
        elif seen >= blank_lines:
            return file.tell() - len(line)
        else:
            seen = 0


# ---------------------------------------------------------------------------------------------------------------------
# Files

READERS = {  # by a file's extension, or by its first four bytes, which take precedence
    ".txt": read_text,
    ".md": read_text,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".pq": read_parquet,
    b"PAR1": read_parquet,
}
# Files of a folder that are not data: hidden ones, those of tools such as Spark (_SUCCESS), and texts about the data.
NO_DATA = (
    r"(?i)(^|/)([._~]|((readme|licen[cs]e)[^/]*|copying|notice|citation|changelog|contributing|code_of_conduct|authors|"
    r"manifest|requirements|(md5|sha\d+|check)sums?)\.(txt|md)$)"
)


def without_compression(path):
    """Return a path without the extension of its compression, such as a.txt for a.txt.gz."""
    return re.sub(r"(?i)\.(gz|zst)$", "", path)


def format_of(path):
    """Return a file's extension, ignoring that of its compression, such as .txt for a.txt.gz."""
    return Path(without_compression(path.name.lower())).suffix


def reader_of(path):
    """Return the reader of a file, by its content if that is clear. Raises DataError for what none can read."""
    with open_lines(path) as lines:
        head = lines.peek()
    if reader := READERS.get(head[:4]):
        return reader
    if what := foreign(head):
        raise DataError(f"it is {what}")
    is_object = re.match(rb'(\xef\xbb\xbf)?\{[ \t]*"', head)
    return read_jsonl if is_object else READERS.get(format_of(path), read_text)


def why_left_out(path, source, field):
    """Return why a file of a source is not read, or "" if it is. Reads its first document. Raises DataError."""
    kind = format_of(path)
    if kind in (".csv", ".tsv"):
        return "a table"
    if path != source:
        if not path.is_file() or re.search(NO_DATA, path.relative_to(source).as_posix()):
            return "hidden, about the data, or not a file"
        if kind not in ("", *READERS):
            return "of another format, by its name"
    is_text = path == source or kind not in ("", ".json")  # else it may be something else
    try:
        if is_text or reader_of(path) is not read_text:
            return "" if any(read_file(path, field)) else "without text"
    except Exception:
        if is_text:
            raise
    return f"neither named as text nor JSON lines with {field!r}"


def walk(folder):
    """Yield the files that a folder holds, and the links to folders, which are not followed."""

    def stop(error):
        raise error

    for parent, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in names + links)


def find_files(source, text_field):
    """Return the files of a source in the order they are read, and {why: the files left out for this reason}.

    The first document of each is read, so what cannot be read is found before any work. A source that is a file is read
    as text whatever its name, unless its content or its name says that it is not. Raises DataError.
    """
    path = EMBEDDED if str(source) == "embedded" else Path(source)
    if path.is_file():
        found = [path]
    elif str(source) and path.is_dir():
        found = sorted(walk(path))
    else:
        raise DataError(f"no such file or folder: {str(source)!r} (pipes and devices cannot be read twice)")
    groups = defaultdict(list)
    names = set()  # of the files that are read, also where links lead
    for file in found:
        name = without_compression(os.path.realpath(file))
        why = "the same file again, as a link or compressed" if name in names else why_left_out(file, path, text_field)
        if not why:
            names.add(name)
        groups[why].append(file)
    files = groups.pop("", [])
    if not files:
        why = "; ".join(groups) or "it is empty"
        raise DataError(
            f"{path}: nothing can be read: {why}. Give .txt, .md, .jsonl or .json (lines with the text field), also as "
            ".gz or .zst; .parquet; or the name of any plain text file"
        )
    return files, groups


def read_file(file, text_field, start=0, end=END):
    """Yield the text of each document of a range of a file, "" for one without text. Raises DataError."""
    place = "the start"
    try:
        for place, record in reader_of(file)(file, text_field, start, end):
            if text_field not in record:
                raise DataError(f"{place}: no field {text_field!r}, only {', '.join(record) or 'nothing'}")
            text = record[text_field]
            if not isinstance(text, str | None):
                raise DataError(f"{place}: no string in the field {text_field!r} but {text!r:.50}")
            yield "" if not text or text.isspace() else text
    except Exception as error:  # each library has errors of its own for damage
        if start > 0:
            for _ in read_file(file, text_field):  # it meets the fault again, and counts lines from the file's start
                pass
        if isinstance(error, DataError):
            raise DataError(f"{file}, {error}") from error
        raise DataError(
            f"{file}, after {place}: damaged or unreadable: {type(error).__name__}: {error}: get it again"
        ) from error
