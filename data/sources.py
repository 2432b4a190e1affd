"""Read the documents of files and folders.

A reader takes a file, the name of the field that holds the text, and a range of the file: [start, end), one of those
between the places that `cut_places` returns. For each document that begins in the range it yields

    (place, record)       "line 7" or "row 7", {field: value}

To support another format, write a reader and add it to READERS.
"""

import codecs
import gzip
import io
import itertools
import json
import os
import sys
from pathlib import Path

from data.tokenizer import optional_package
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "python-docs.jsonl.gz"  # the text that comes with the project
PARQUET_ROWS = 16  # rows of a parquet file in memory at a time
END = sys.maxsize  # of a range: the end of the file
ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"


def read_text(path, field, start, end):
    """Read plain text: one blank line separates paragraphs, two or more separate documents."""
    lines, first, blank = [], 1, 0  # of the document so far, the number of the first; blank lines since the last
    blank_end = [(0, b"")] * 2
    for number, line in itertools.chain(read_lines(path, start, end), blank_end):
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
    """Return the JSON object that a text is. location: of the text, for the message of an error."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter: lists or objects are nested too deep
        fault = str(error).replace("line 1 ", "")  # JSON's own count
        raise DataError(f"{location}: cannot be read as JSON: {fault}") from None
    if not isinstance(record, dict):
        raise DataError(f"{location}: expected a JSON object, got a {type(record).__name__}")
    return record


def read_lines(path, start, end):
    """Yield (number, line without its line break) of a range.

    Lines count from 1 at the start of a file. In its middle they count from 2, as its first line is not there.
    """
    with open_lines(path) as lines:
        if start > 0:  # what is compressed begins at 0
            lines.seek(start)
        position = start
        for number, line in enumerate(lines, 1 if start == 0 else 2):
            if position >= end:
                break
            position += len(line)
            yield number, line.removesuffix(b"\n")


def open_lines(path):
    """Open a file as it is without its compression."""
    compression = path.suffix.lower()
    if compression == ".gz":
        return io.BufferedReader(gzip.open(path))
    if compression == ".zst":
        return io.BufferedReader(optional_package("pyarrow").CompressedInputStream(str(path), "zstd"))
    return open(path, "rb")


def decode(data, first):
    """Decode lines of UTF-8. `first` is the number of the first line, for the error message."""
    data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if first == 1:
        data = data.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with a byte-order mark
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number, byte = first + data.count(b"\n", 0, error.start), data[error.start]
        raise DataError(f"line {number}: byte 0x{byte:02x} is not UTF-8: convert the text (iconv -t UTF-8)") from None


def read_parquet(path, field, start, end):
    """Read parquet: each row holds one document. However large a row group is, few of its pages are in memory."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        columns = [field] if field in file.schema_arrow.names else None  # read_file() names all then
        groups = [group for group, place in enumerate(group_places(path)) if start <= place < end]
        yield from read_rows(file.iter_batches(PARQUET_ROWS, groups, columns, use_threads=False))


def read_arrow(path, field, start, end):
    """Read what datasets.save_to_disk writes: each row holds one document."""
    from pyarrow import ipc

    with open(path, "rb") as file:
        yield from read_rows(ipc.open_stream(file))
        file.seek(-len(ARROW_END), os.SEEK_END)
        if file.read() != ARROW_END:  # not noticed by pyarrow
            raise ValueError("its end is missing")


def read_rows(batches):
    number = 0
    for batch in batches:
        for record in batch.to_pylist():
            number += 1
            yield f"row {number}", record


# ---------------------------------------------------------------------------------------------------------------------
# Ranges of a file


def cut_places(path, size):
    """Return [0, ..., END]: places where documents of a file begin, about `size` bytes apart.

    What is compressed has only these two. They are a function of the content. The documents of all ranges between them
    are those of the file.
    """
    places = [0]
    if format_of(path) == ".parquet":
        places += [place for before, place in itertools.pairwise(group_places(path)) if place // size > before // size]
    elif path.suffix.lower() not in WHOLE:
        place, total = 0, path.stat().st_size
        while (place := document_after(path, place + size)) < total:
            places.append(place)
    return [*places, END]


def group_places(path):
    """Return where each row group of a parquet file begins, in bytes, as if all were equally long."""
    from pyarrow import parquet

    try:
        groups = parquet.read_metadata(path).num_row_groups
    except Exception:  # reading will say what is wrong
        return []
    return [path.stat().st_size * group // groups for group in range(groups)]


def document_after(path, position):
    """Return where the first document begins after a line end after a position, or where the file ends.

    Two blank lines must be seen before it, except in JSON lines.
    """
    needed = 0 if READERS.get(format_of(path)) is read_jsonl else 2
    blank = 0
    with open(path, "rb") as file:
        file.seek(position)
        file.readline()  # the rest of a line
        while True:
            start = file.tell()
            line = file.readline()
            if not line or (line.strip() and blank >= needed):
                return start
            blank = 0 if line.strip() else blank + 1


# ---------------------------------------------------------------------------------------------------------------------
# Files

READERS = {
    ".txt": read_text,
    ".md": read_text,
    ".jsonl": read_jsonl,
    ".json": read_jsonl,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
READABLE = ".txt, .md, .jsonl and .json lines with the text field, each also .gz or .zst, .parquet, and .arrow"
NOT_TEXT = {".csv", ".tsv", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".pdf"}
WHOLE = ".gz", ".zst", ".arrow"  # what is cut nowhere
NEED_PYARROW = ".parquet", ".arrow", ".zst"


def format_of(path):
    """Return the extension that chooses the reader, such as .txt for a.txt.gz."""
    return Path(path.name.lower().removesuffix(".gz").removesuffix(".zst")).suffix


def is_read(path, field):
    """Return whether a file of a folder is read. A .json file counts if its first line names the field.

    Other .json files are about the data.
    """
    if format_of(path) != ".json":
        return format_of(path) in READERS
    try:
        _, line = next(read_lines(path, 0, END), (1, b""))
    except Exception:  # reading will say what is wrong
        return True
    return f'"{field}"'.encode() in line


def walk(folder):
    """Yield the files that a folder holds, and the links to folders, which are not followed."""

    def stop(error):
        raise error

    for parent, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in names + links)


def find_files(source, text_field):
    """Return the files of a source in the order they are read, and a list of what in it is not read.

    A file that is named itself is read as text whatever its extension, unless the extension is known not to be text.
    Raises DataError.
    """
    path = EMBEDDED if str(source) == "embedded" else Path(source)
    if path.is_file():
        found = [path]
        files = [file for file in found if format_of(file) not in NOT_TEXT]
    elif str(source) and path.is_dir():
        found = sorted(walk(path))
        files = [file for file in found if file.is_file() and is_read(file, text_field)]
    else:
        raise DataError(f"no such file or folder: {str(source)!r} (pipes and devices cannot be read twice)")
    if not files:
        raise DataError(f"{path}: of {len(found)} files none can be read, only {READABLE}, and any plain text by name")
    if any(file.suffix.lower() in NEED_PYARROW for file in files):
        optional_package("pyarrow")
    return files, sorted(set(found) - set(files))


def read_file(file, text_field, start=0, end=END):
    """Yield the text of each document of a range of a file that is not empty. Raises DataError."""
    place = "the start"
    try:
        for place, record in READERS.get(format_of(file), read_text)(file, text_field, start, end):
            if text_field not in record:
                raise DataError(f"{place}: no field {text_field!r}, only {', '.join(record) or 'nothing'}")
            text = record[text_field]
            if not isinstance(text, str | None):
                raise DataError(f"{place}: no string in the field {text_field!r} but {text!r:.50}")
            if text and not text.isspace():
                yield text
    except Exception as error:  # each library has errors of its own for damage
        if start > 0:
            for _ in read_file(file, text_field):  # it meets the fault again, and counts lines from the file's start
                pass
        fault = error
        if not isinstance(error, DataError):
            fault = f"after {place}: damaged or unreadable: {type(error).__name__}: {error}"
        raise DataError(f"{file}, {fault}") from error
