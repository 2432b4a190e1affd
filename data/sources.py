"""Sources: the documents of files and folders.

A reader takes the lines of a file as bytes and the name of the text field, and yields the documents in it as strings.
To read another format, write one and add it to READERS.
"""
import codecs
import gzip
import json
import zlib
from pathlib import Path

from data import embedded
from data.tokenizer import DataError


def read_text(lines, field):
    """Plain text: paragraphs one blank line apart, documents two or more."""
    document, first, size, blank = [], 1, 0, 0
    for number, line in enumerate(lines, 1):
        if line.isspace():
            blank += 1
            continue
        if document and blank > 1:
            yield decode(document, first)
            document, size = [], 0
        if not document:
            first = number
        elif blank:
            document.append(b"\n")
        document.append(line)
        size, blank = size + len(line), 0
        if size > LONGEST_DOCUMENT:
            raise DataError(f"line {first}: {TOO_LONG}")
    if document:
        yield decode(document, first)


def read_jsonl(lines, field):
    """JSON lines: the string in `field` of each."""
    for number, line in enumerate(lines, 1):
        if len(line) > LONGEST_DOCUMENT:
            raise DataError(f"line {number}: {TOO_LONG}")
        if line.isspace():
            continue
        try:
            record = json.loads(decode([line], number))
        except json.JSONDecodeError as error:
            raise DataError(f"line {number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(record, dict):
            raise DataError(f"line {number}: expected a JSON object, got a {type(record).__name__}")
        if not isinstance(record.get(field), str):
            seen = ", ".join(f"{name} ({type(value).__name__})" for name, value in record.items())
            raise DataError(f"line {number}: no string in the field {field!r} (text_field), only {seen or 'nothing'}")
        yield record[field]


def decode(lines, first):
    """The text of lines of UTF-8, the first of which has number `first`, without the last line end."""
    data = b"".join(lines).replace(b"\r\n", b"\n").removesuffix(b"\n")
    if first == 1:
        data = data.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with a byte-order mark
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number, byte = first + data.count(b"\n", 0, error.start), data[error.start]
        raise DataError(f"line {number}: byte 0x{byte:02x} is not UTF-8: convert the text (iconv -t UTF-8)") from None


READERS = {".txt": read_text, ".md": read_text, ".jsonl": read_jsonl}
READABLE = f"{', '.join(READERS)}, each also .gz"
NOT_TEXT = {".json", ".csv", ".tsv", ".parquet", ".arrow", ".zst", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".pdf"}
LONGEST_DOCUMENT = 32 << 20  # bytes; what keeps memory flat
TOO_LONG = (f"a document of more than {LONGEST_DOCUMENT >> 20} MB; two blank lines end a document in text, "
            "the line ends it in .jsonl")


def suffix(path):
    """The extension that chooses the reader: .txt of a.txt.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def find_files(source):
    """Return the files of a source in the order they are read, and the files in it that no reader takes.

    A file that is named itself is read as text, whatever its extension, unless that is known not to be text.
    """
    path = Path(source)
    if source == "embedded":
        return [], []
    if path.is_file():
        if suffix(path) in NOT_TEXT:
            raise DataError(f"{path}: {suffix(path)} files are not read, only {READABLE}, and any plain text")
        return [path], []
    if not source or not path.is_dir():
        raise DataError(f"no such file or folder: {str(source)!r} (and it is not 'embedded')")
    files = sorted(file for file in path.rglob("*") if file.is_file())
    readable = [file for file in files if suffix(file) in READERS]
    if not readable:
        raise DataError(f"{path}: none of the {len(files)} files in this folder is read; read are {READABLE}")
    return readable, [file for file in files if suffix(file) not in READERS]


def read_documents(source, text_field, bar=None):
    """Yield the documents of a source; `bar` (tqdm) advances by the bytes read from disk."""
    if source == "embedded":
        yield from embedded.documents()
    for path in find_files(source)[0]:
        with open(path, "rb") as raw, gzip.open(raw) if path.suffix.lower() == ".gz" else raw as stream:
            # With a limit, so that a file without line ends does not fill the memory.
            lines = iter(lambda: stream.readline(LONGEST_DOCUMENT + 1), b"")
            position = 0
            try:
                for text in READERS.get(suffix(path), read_text)(lines, text_field):
                    yield text
                    if bar is not None:
                        bar.update(raw.tell() - position)
                        position = raw.tell()
            except DataError as error:
                raise DataError(f"{path}, {error}") from None
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise DataError(f"{path}: damaged gzip file: {error}") from None
