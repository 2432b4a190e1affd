"""Sources: the documents of files, folders and data sets of the hub.

A reader takes a file and the names of the fields that are wanted, the text's first, and yields

    (place, position, record)       "line 7" or "row 7", the bytes of the file read so far, {field: value}

with a record of None for a document that is too long to be read. To read another format, write one and add it to
READERS.
"""
import ast
import codecs
import functools
import gzip
import json
import operator
import re
import zlib
from pathlib import Path

from tqdm import tqdm

from data import embedded
from errors import DataError

LONGEST_DOCUMENT = 32 << 20  # bytes; characters where they come decoded. A longer one is left out: memory stays flat
BLOCK = 1 << 18  # bytes of text that are read at a time
PARQUET_BYTES = 8 << 20  # of a parquet file that are decoded at a time, by the mean row of the row group
PARQUET_ROWS = 1024  # and never more rows than these, as compressed ones may be larger than they look


def read_text(path, fields):
    """Plain text: paragraphs one blank line apart, documents two or more."""
    document, first, position, size, blank = [], 1, 0, 0, 0
    for number, (now, line) in enumerate(read_lines(path), 1):
        if line is not None and (not line or line.isspace()):
            blank += 1
            continue
        if size and blank > 1:
            yield text_record(document, first, position, size, fields[0])
            document, size = [], 0
        if not size:
            first = number
        elif blank:
            document.append(b"")
        position, blank = now, 0
        document.append(line)
        size += LONGEST_DOCUMENT + 1 if line is None else len(line) + 1
        if size > LONGEST_DOCUMENT:
            document.clear()
    if size:
        yield text_record(document, first, position, size, fields[0])


def text_record(document, first, position, size, field):
    record = None if size > LONGEST_DOCUMENT else {field: decode(b"\n".join(document), first)}
    return f"line {first}", position, record


def read_jsonl(path, fields):
    """JSON lines: an object with the fields on each."""
    for number, (position, line) in enumerate(read_lines(path), 1):
        if line is None:
            yield f"line {number}", position, None
        elif line and not line.isspace():
            try:
                record = json.loads(decode(line, number))
            except json.JSONDecodeError as error:
                raise DataError(f"line {number}: not JSON: {error.msg} at column {error.colno}") from None
            if not isinstance(record, dict):
                raise DataError(f"line {number}: expected a JSON object, got a {type(record).__name__}")
            yield f"line {number}", position, record


def read_lines(path):
    """Yield (bytes of the file read so far, line without its end); None for a line that is too long."""
    opened, damage = open, ()
    if path.suffix.lower() == ".gz":
        opened, damage = gzip.open, (gzip.BadGzipFile, zlib.error, EOFError)
    elif path.suffix.lower() == ".zst":
        opened, damage = zstd().open, (zstd().ZstdError, EOFError)
    rest, too_long = b"", False
    with open(path, "rb") as raw, raw if opened is open else opened(raw) as stream:
        try:
            while block := stream.read(BLOCK):
                *lines, rest = (rest + block).split(b"\n")
                position = raw.tell()
                for line in lines:
                    yield position, None if too_long or len(line) > LONGEST_DOCUMENT else line
                    too_long = False
                if too_long or len(rest) > LONGEST_DOCUMENT:
                    rest, too_long = b"", True
        except damage as error:
            raise DataError(f"damaged: {error}") from None
        if rest or too_long:
            yield raw.tell(), None if too_long else rest


def decode(data, first):
    """The text of lines of UTF-8, the first of which has number `first`."""
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n").removesuffix(b"\r")
    if first == 1:
        data = data.removeprefix(codecs.BOM_UTF8)  # some editors begin a file with a byte-order mark
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        number, byte = first + data.count(b"\n", 0, error.start), data[error.start]
        raise DataError(f"line {number}: byte 0x{byte:02x} is not UTF-8: convert the text (iconv -t UTF-8)") from None


def read_parquet(path, fields):
    """Parquet: a document a row. Of a row group, however large, few pages are in memory."""
    import pyarrow
    from pyarrow import parquet

    number, size = 0, path.stat().st_size
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            schema = {field.name: field.type for field in file.schema_arrow}
            if missing := [field for field in fields if field not in schema]:
                raise DataError(f"schema: {absent(missing[0], fields, schema.items())}")
            for group in range(file.num_row_groups):
                rows, total = file.metadata.row_group(group).num_rows, file.metadata.row_group(group).total_byte_size
                batch_size = min(max(rows * PARQUET_BYTES // max(total, 1), 1), PARQUET_ROWS)
                for batch in file.iter_batches(batch_size, [group], fields, use_threads=False):
                    for values in zip(*(batch.column(field).to_pylist() for field in fields)):
                        number += 1
                        yield f"row {number}", size * number // file.metadata.num_rows, dict(zip(fields, values))
    except UnicodeDecodeError as error:
        raise DataError(f"after row {number}: text that is not UTF-8: {error}") from None
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"damaged: {error}") from None


def read_hub(file, fields):
    """A file of a data set of the Hugging Face hub, streamed."""
    source, _, index = file.rpartition("#")
    dataset = hub_dataset(source)
    for number, record in enumerate(dataset.shard(dataset.num_shards, int(index)), 1):
        yield f"row {number}", 0, record


@functools.lru_cache
def hub_dataset(source):
    """The streamed data set of hf:NAME:CONFIG:SPLIT; raises DataError."""
    name, config, split, *more = [*source.split(":")[1:], "", ""]
    if not name or not split or len(more) != 2:
        raise DataError(f"{source}: expected hf:NAME:CONFIG:SPLIT, such as hf:HuggingFaceFW/fineweb-edu:sample-100BT:"
                        "train; CONFIG may be empty")
    try:
        import datasets
    except ImportError:
        raise DataError(f"{source}: streaming from the hub needs the datasets package: pip install datasets") from None
    try:
        return datasets.load_dataset(name, config or None, split=split, streaming=True)
    except (OSError, ValueError) as error:
        raise DataError(f"{source}: {error}") from None


def read_embedded(file, fields):
    for number, text in enumerate(embedded.documents(), 1):
        yield f"document {number}", 0, {fields[0]: text}


def zstd():
    """The module for .zst: part of Python from 3.14 on, before that the same by the name of backports.zstd."""
    try:
        from compression import zstd
    except ImportError:
        from backports import zstd
    return zstd


# ---------------------------------------------------------------------------------------------------------------------
# Files

READERS = {".txt": read_text, ".md": read_text, ".jsonl": read_jsonl, ".parquet": read_parquet}
READABLE = ".txt, .md and .jsonl, each also .gz or .zst, and .parquet"
NOT_TEXT = {".gz", ".zst", ".json", ".csv", ".tsv", ".arrow", ".xz", ".bz2", ".zip", ".tar", ".tgz", ".pdf"}


def suffix(path):
    """The extension that chooses the reader: .txt of a.txt.gz."""
    return Path(re.sub(r"(?<!\.parquet)\.(gz|zst)$", "", path.name.lower())).suffix


def find_files(source):
    """Return the files of a source in the order they are read, and the files in it that no reader takes.

    A file that is named itself is read as text, whatever its extension, unless that is known not to be text. The
    files of a data set of the hub are strings, and so is the single one of "embedded". Raises DataError.
    """
    source = str(source)
    path = Path(source)
    if source == "embedded":
        return [source], []
    if source.startswith("hf:"):
        return [f"{source}#{index}" for index in range(hub_dataset(source).num_shards)], []
    if path.is_file():
        if suffix(path) in NOT_TEXT:
            raise DataError(f"{path}: {suffix(path)} files are not read, only {READABLE}, and any plain text")
        files, ignored = [path], []
    elif not source or not path.is_dir():
        raise DataError(f"no such file or folder: {source!r} (and it is not 'embedded' or hf:...)")
    else:
        files = sorted(file for file in path.rglob("*") if file.is_file())
        ignored = [file for file in files if suffix(file) not in READERS]
        if len(files) == len(ignored):
            raise DataError(f"{path}: none of the {len(files)} files in this folder is read; read are {READABLE}")
        files = [file for file in files if suffix(file) in READERS]
    try:
        if any(suffix(file) == ".parquet" for file in files):
            import pyarrow  # noqa: F401
        if any(file.suffix.lower() == ".zst" for file in files):
            zstd()
    except ImportError as error:
        raise DataError(f"{path}: reading it needs a package that is not installed, {error.name}: "
                        "pip install pyarrow (.parquet), pip install backports.zstd (.zst)") from None
    return files, ignored


def read_documents(source, text_field):
    """Yield the documents of a source as strings."""
    for file in find_files(source)[0]:
        for _, text, dropped in read_file(file, text_field):
            if not dropped:
                yield text


def read_file(file, text_field, where=()):
    """Yield (bytes read so far, text, "") for each document of a file of find_files(), and (bytes, None, why) for each
    that is dropped: "filtered" by `where` (see parse_where), "empty", or "too_long". Raises DataError."""
    fields = list(dict.fromkeys([text_field, *(field for field, _, _ in where)]))
    if file == "embedded":
        reader = read_embedded
    elif isinstance(file, str):
        reader = read_hub
    else:
        reader = READERS.get(suffix(file), read_text)
    place = ""
    try:
        for place, position, record in reader(file, fields):
            if record is None or isinstance(text := record.get(text_field), str) and len(text) > LONGEST_DOCUMENT:
                tqdm.write(f"{file}, {place}: left out, a document of more than {LONGEST_DOCUMENT >> 20} MB (in text "
                           "two blank lines end a document, in .jsonl the line)")
                yield position, None, "too_long"
                continue
            if missing := [field for field in fields if field not in record]:
                seen = [(name, type(value).__name__) for name, value in record.items()]
                raise DataError(f"{place}: {absent(missing[0], fields, seen)}")
            if text is not None and not isinstance(text, str):
                raise DataError(f"{place}: no string in the field {text_field!r} (text_field) but {text!r:.50}")
            if not text or text.isspace():
                yield position, None, "empty"
            elif not all(holds(record[field], compare, value, field, place) for field, compare, value in where):
                yield position, None, "filtered"
            else:
                yield position, text, ""
    except DataError as error:
        raise DataError(f"{file}, {error}") from None


def absent(field, fields, seen):
    """What to say of a field that is not there; `seen` has the (name, type) of those that are."""
    seen = ", ".join(f"{name} ({kind})" for name, kind in seen)
    return f"no field {field!r} ({'text_field' if field == fields[0] else 'where'}), only {seen or 'nothing'}"


# ---------------------------------------------------------------------------------------------------------------------
# Filters

COMPARE = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, "<=": operator.le, ">": operator.gt,
           "<": operator.lt}  # fmt: skip


def parse_where(where):
    """Return [(field, operator, value), ...] of terms such as "language==en,score>=0.8"; raises DataError.

    A value that reads as a number, True or False is one; anything else, with or without quotes, is a string.
    """
    parsed = []
    for term in where.split(",") if where else ():
        match = re.fullmatch(r"\s*([^=!<>]*[^=!<>\s])\s*(==|!=|>=|<=|>|<)\s*([^=!<>\s].*?)\s*", term)
        if not match:
            raise DataError(f"where: {term!r} is not a field, one of {' '.join(COMPARE)}, and a value, "
                            "as in language_score>=0.8")
        field, sign, value = match.groups()
        try:
            literal = ast.literal_eval(value)
            value = literal if isinstance(literal, (str, int, float)) else value
        except (ValueError, SyntaxError):  # not a literal: a string without quotes
            pass
        parsed.append((field, COMPARE[sign], value))
    return parsed


def holds(have, compare, value, field, place):
    """Whether a document's value of a field meets a term; a null meets none."""
    if have is None:
        return False
    if isinstance(have, str) != isinstance(value, str) or not isinstance(have, (str, int, float)):
        raise DataError(f"{place}: the field {field!r} holds {have!r:.50}, which cannot be compared with {value!r} "
                        "(where); a string needs a string, as in score=='3', a number a number")
    return compare(have, value)
