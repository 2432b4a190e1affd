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
import re
import sys
from pathlib import Path

from data.tokenizer import optional_package
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "python-docs.jsonl.gz"  # the text that comes with the project
PARQUET_ROWS = 16  # rows of a parquet file in memory at a time
END = sys.maxsize  # of a range: the end of the file


def read_text(path, field, start, end):
    """Read plain text: one blank line separates paragraphs, two or more separate documents."""
    document, first, blank = bytearray(), 1, 0  # the lines so far, the number of the first; blank lines since the last
    blank_end = [(0, b"")] * 2
    for number, line in itertools.chain(read_lines(path, start, end), blank_end):
        if line.strip():
            if document:
                document += b"\n\n" if blank else b"\n"
            else:
                first = number
            document += line
            blank = 0
        else:
            blank += 1
            if blank == 2 and document:
                yield f"line {first}", {field: decode(document, first)}
                document = bytearray()


def read_jsonl(path, field, start, end):
    """Read JSON lines: each line holds one document, an object with the field."""
    for number, line in read_lines(path, start, end):
        if line.strip():
            try:
                record = json.loads(decode(line, number))
            except (json.JSONDecodeError, RecursionError) as error:
                fault = str(error).replace("line 1 ", "")  # JSON's own count
                raise DataError(f"line {number}: cannot be read as JSON: {fault}") from None
            if not isinstance(record, dict):
                raise DataError(f"line {number}: expected a JSON object, got a {type(record).__name__}")
            yield f"line {number}", record


def read_lines(path, start, end):
    """Yield (number, line without its line break) of a range.

    Lines count from 1 at the start of a file. In its middle they count from 2: see `in_whole_file`.
    """
    with open(path, "rb") as file:
        lines = io.BufferedReader(gzip.open(file)) if is_compressed(path) else file
        lines.seek(start)
        position = start
        for number, line in enumerate(lines, 1 if start == 0 else 2):
            if position >= end:
                break
            position += len(line)
            yield number, line.removesuffix(b"\n")


def is_compressed(path):
    return path.suffix.lower() == ".gz"


def decode(data, first):
    """Decode lines of UTF-8. `first` is the number of the first line, for the error message."""
    if b"\r" in data:
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
        places = group_places(path, file.num_row_groups)
        number = sum(file.metadata.row_group(group).num_rows for group, place in places.items() if place < start)
        groups = [group for group, place in places.items() if start <= place < end]
        for batch in file.iter_batches(PARQUET_ROWS, groups, columns, use_threads=False):
            for record in batch.to_pylist():
                number += 1
                yield f"row {number}", record


def group_places(path, groups):
    """Return {row group: where it begins}, in bytes of a parquet file, as if its groups were equally long."""
    size = path.stat().st_size
    return {group: size * group // groups for group in range(groups)}


# ---------------------------------------------------------------------------------------------------------------------
# Ranges of a file


def cut_places(path, size):
    """Return [0, ..., END]: places where documents of a file begin, about `size` bytes apart. A .gz has only these two.

    They are a function of the content. The documents of all ranges between them are those of the file.
    """
    places = [0]
    if format_of(path) == ".parquet":
        groups = group_places(path, count_row_groups(path)).values()
        places += [place for before, place in itertools.pairwise(groups) if place // size > before // size]
    elif not is_compressed(path):
        place, total = document_after(path, size), path.stat().st_size
        while place < total:
            places.append(place)
            place = document_after(path, place + size)
    return [*places, END]


def count_row_groups(path):
    """Return how many row groups a parquet file has; 0 if it cannot be read, as reading will say what is wrong."""
    from pyarrow import parquet

    try:
        return parquet.read_metadata(path).num_row_groups
    except Exception:
        return 0


def document_after(path, position):
    """Return where the first document begins after a line end after a position, or where the file ends.

    Two blank lines must be seen before it, except in .jsonl.
    """
    needed = 0 if format_of(path) == ".jsonl" else 2
    blank = 0
    with open(path, "rb") as file:
        file.seek(position)
        file.readline()  # the rest of a line
        start = file.tell()
        for line in file:
            if line.strip():
                if blank >= needed:
                    break
                blank = 0
            else:
                blank += 1
            start += len(line)
    return start


def in_whole_file(place, file, start):
    """Return the text `place`, which may begin with a line's number, with the line counted from the file's start."""
    if start == 0:
        return place
    before = sum(1 for _ in read_lines(file, 0, start)) - 1
    return re.sub(r"^line (\d+)", lambda found: f"line {before + int(found[1])}", place)


# ---------------------------------------------------------------------------------------------------------------------
# Files

READERS = {".txt": read_text, ".md": read_text, ".jsonl": read_jsonl, ".parquet": read_parquet}
READABLE = ".txt, .md and .jsonl, each also .gz, and .parquet"
NOT_TEXT = {".gz", ".zst", ".json", ".csv", ".tsv", ".arrow", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".pdf"}


def format_of(path):
    """Return the extension that chooses the reader, such as .txt for a.txt.gz."""
    name = path.name.lower()
    return Path(name if name.endswith(".parquet.gz") else name.removesuffix(".gz")).suffix


def walk(folder):
    """Yield the files that a folder holds, and the links to folders, which are not followed."""

    def stop(error):
        raise error

    for parent, folders, names in os.walk(folder, onerror=stop):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in names + links)


def find_files(source):
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
        files = [file for file in found if file.is_file() and format_of(file) in READERS]
    else:
        raise DataError(f"no such file or folder: {str(source)!r} (pipes and devices cannot be read twice)")
    if not files:
        raise DataError(f"{path}: of {len(found)} files none can be read, only {READABLE}, and any plain text by name")
    if any(format_of(file) == ".parquet" for file in files):
        optional_package("pyarrow")
    return files, sorted(set(found) - set(files))


def read_documents(source, text_field):
    """Yield the documents of a source as strings."""
    for file in find_files(source)[0]:
        yield from read_file(file, text_field)


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
    except DataError as error:
        raise DataError(f"{file}, {in_whole_file(str(error), file, start)}") from None
    except Exception as error:  # each library has errors of its own for damage
        place = in_whole_file(place, file, start)
        raise DataError(f"{file}, after {place}: damaged or unreadable: {type(error).__name__}: {error}") from error
