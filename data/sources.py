"""Read the documents of files and folders.

A reader takes a file and the name of the field that holds the text. For each document it yields

    (place, position, record)       "line 7" or "row 7", the bytes of the file read so far, {field: value}

To support another format, write a reader and add it to READERS.
"""

import codecs
import gzip
import io
import itertools
import json
import os
from pathlib import Path

from data.tokenizer import optional_package
from errors import DataError

EMBEDDED = Path(__file__).with_name("embedded") / "python-docs.jsonl.gz"  # the text that comes with the project
PARQUET_ROWS = 16  # rows of a parquet file in memory at a time


def read_text(path, field):
    """Read plain text: one blank line separates paragraphs, two or more separate documents."""
    document, first, blank = bytearray(), 1, 0  # the lines so far, the number of the first; blank lines since the last
    blank_end = [(path.stat().st_size, b"")] * 2
    for number, (position, line) in enumerate(itertools.chain(read_lines(path), blank_end), 1):
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
                yield f"line {first}", position, {field: decode(document, first)}
                document = bytearray()


def read_jsonl(path, field):
    """Read JSON lines: each line holds one document, an object with the field."""
    for number, (position, line) in enumerate(read_lines(path), 1):
        if line.strip():
            try:
                record = json.loads(decode(line, number))
            except (json.JSONDecodeError, RecursionError) as error:
                fault = str(error).replace("line 1 ", "")  # JSON's own count
                raise DataError(f"line {number}: cannot be read as JSON: {fault}") from None
            if not isinstance(record, dict):
                raise DataError(f"line {number}: expected a JSON object, got a {type(record).__name__}")
            yield f"line {number}", position, record


def read_lines(path):
    """Yield (bytes of the file read so far, line without its line break)."""
    with open(path, "rb") as file:
        for line in io.BufferedReader(gzip.open(file)) if path.suffix.lower() == ".gz" else file:
            yield file.tell(), line.removesuffix(b"\n")


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


def read_parquet(path, field):
    """Read parquet: each row holds one document. However large a row group is, few of its pages are in memory."""
    from pyarrow import parquet

    number, size = 0, path.stat().st_size
    with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
        columns = [field] if field in file.schema_arrow.names else None  # read_file() names all then
        for batch in file.iter_batches(PARQUET_ROWS, columns=columns, use_threads=False):
            for record in batch.to_pylist():
                number += 1
                yield f"row {number}", size * number // file.metadata.num_rows, record


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
        for _, text in read_file(file, text_field):
            yield text


def read_file(file, text_field):
    """Yield (bytes read so far, text) for each document of a file that is not empty. Raises DataError."""
    place = "the start"
    try:
        for place, position, record in READERS.get(format_of(file), read_text)(file, text_field):
            if text_field not in record:
                raise DataError(f"{place}: no field {text_field!r}, only {', '.join(record) or 'nothing'}")
            text = record[text_field]
            if not isinstance(text, str | None):
                raise DataError(f"{place}: no string in the field {text_field!r} but {text!r:.50}")
            if text and not text.isspace():
                yield position, text
    except DataError as error:
        raise DataError(f"{file}, {error}") from None
    except Exception as error:  # each library has errors of its own for damage
        raise DataError(f"{file}, after {place}: damaged or unreadable: {type(error).__name__}: {error}") from error
