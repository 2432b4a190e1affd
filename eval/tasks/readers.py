"""Readers of the files that data for fine-tuning comes in. `eval/tasks.py` makes examples of what they yield.

First the formats, then the families: `read_texts`, `read_sentences`, `read_questions`, `read_pairs` and, for the
evaluation of retrieval, `read_qrels` and `read_texts_by_id`. All text is UTF-8, plain or .gz. What cannot be read is a
DataError that names the file and the line. Where a rule had to be applied to read something, `counts`, a Counter, has
how often.
"""

import csv
import glob
import gzip
import json
import operator
import re
import zlib
from itertools import chain
from pathlib import Path
from string import Formatter

from tqdm import tqdm

from data.sources import decode
from errors import DataError

csv.field_size_limit(2**31 - 1)  # a long document is no error


def find(path):
    """The files of a path: itself, or itself with .gz, or the matches of a pattern; [] where there are none."""
    if path.startswith("hf:"):
        return [path]
    for name in (path, path + ".gz"):
        if Path(name).is_file():
            return [name]
    return sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())


def lines(path):
    """Yield (number, text) of each line of a file, without its line end."""
    with open(path, "rb") as raw, gzip.open(raw) if Path(path).suffix == ".gz" else raw as stream:
        try:
            bar = tqdm(stream, Path(path).name, unit=" lines", unit_scale=True, delay=3, leave=False, disable=None)
            for number, line in enumerate(bar, 1):
                yield number, decode(line.removesuffix(b"\n"), number)
        except DataError as error:
            raise DataError(f"{path}, {error}") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip file: {error}") from None


def suffix(path):
    """The extension that says what is in a file: .jsonl of a.jsonl.gz."""
    return Path(str(path).lower().removesuffix(".gz")).suffix


# ----------------------------------------------------------------------------
# Tables


def rows(path, columns, ragged=None):
    """Yield (number, {column: value}) of a table; all of `columns` are in each row.

    path: .tsv (a header; no quoting, as in GLUE), .csv (a header; quoted as usual), .jsonl (an object a line), or
        hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, a data set of the Hugging Face hub.
    ragged: a list that takes the numbers of .tsv lines with more or fewer fields than the header, which are then
        left out; None makes them errors.
    """
    if str(path).startswith("hf:"):
        table = hub_rows(path)
    elif suffix(path) == ".jsonl":
        table = json_rows(path)
    elif suffix(path) in (".tsv", ".csv"):
        table = delimited_rows(path, ragged)
    else:
        raise DataError(f"{path}: a table is a .tsv, .csv or .jsonl file (each also .gz), or hf:NAME:SPLIT")
    for number, row in table:
        if missing := [column for column in columns if column not in row]:
            raise DataError(f"{path}, line {number}: no column {', '.join(missing)}; the columns are {', '.join(row)}")
        yield number, row


def delimited_rows(path, ragged):
    if suffix(path) == ".tsv":
        split = ((number, text.split("\t")) for number, text in lines(path))
    else:
        reader = csv.reader((text + "\n" for _, text in lines(path)), strict=True)
        split, ragged = ((reader.line_num, fields) for fields in reader), None
    header = None
    try:
        for number, fields in split:
            if header is None:
                header = fields
            elif len(fields) == len(header):
                yield number, dict(zip(header, fields))
            elif fields in ([], [""]):
                continue  # an empty line
            elif ragged is None:
                raise DataError(f"{path}, line {number}: {len(fields)} fields, but the header has {len(header)}")
            else:
                ragged.append(number)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None


def json_rows(path):
    """Yield (number, object) of each line of JSON."""
    for number, text in lines(path):
        if not text or text.isspace():
            continue
        try:
            record = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}: not JSON: {error.msg} at column {error.colno}") from None
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: expected a JSON object, got a {type(record).__name__}")
        yield number, record


def hub_rows(address):
    """Yield (number, row) of a split of a hub data set, classes by name; needs the `datasets` package."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(f"{address}: needs the datasets package (pip install datasets)") from None
    name, *config, split = address.removeprefix("hf:").split(":")
    try:
        table = load_dataset(name, *config, split=split)
    except (OSError, ValueError) as error:  # no such data set, no network
        raise DataError(f"{address}: {error}") from None
    classes = {}  # column: the names of its classes, whether it holds one of them or a list
    for column, feature in table.features.items():
        feature = getattr(feature, "feature", feature)
        if hasattr(feature, "names"):
            classes[column] = dict(enumerate(feature.names))
    for number, row in enumerate(table, 1):
        for column, named in classes.items():
            value = row[column]
            row[column] = [named.get(v, v) for v in value] if isinstance(value, list) else named.get(value, value)
        yield number, row


# ----------------------------------------------------------------------------
# Words and tags in columns


# In CoNLL-U style files "# text = ...", "# newdoc"; in CoNLL-2012 "#begin document". A word "#" has its tag behind a
# tab or has other columns behind it, so it matches none of them. Comments stand before the first word of a sentence.
COMMENT = re.compile(r"# ?[\w.:-]+ = |# (newdoc|newpar)\b|#(begin|end) document\b")
TAG = re.compile(r"O|[BIESLU]-.+")


def conll_sentences(path, word=0, tag=-1):
    """Yield (number, words, tags) of each sentence in CoNLL columns; number: the line of its first word.

    A line is a word. Columns are separated by tabs, or by spaces in a line without a tab; word and tag are the numbers
    of their columns, counted from 0, or from the end if negative. A blank line or a -DOCSTART- line ends a sentence.
    The tags are as in the file, but for CoNLL-2012's brackets, (PERSON* *) (GPE), which become B-PERSON I-PERSON B-GPE.
    """
    words, tags, first, width = [], [], 0, 0
    for number, line in chain(lines(path), [(0, "")]):
        fields = line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]
        if not line.strip() or fields[0] == "-DOCSTART-":
            if words:
                yield first, words, without_brackets(tags)
            words, tags = [], []
        elif words or not COMMENT.match(line):
            # Counted from the end, a column of a shorter or longer line would be another one.
            least, width = max(word + 1, tag + 1, 2), width or len(fields)
            if len(fields) < least or (min(word, tag) < 0 and len(fields) != width):
                wanted = f"at least {least}" if len(fields) < least else f"{width}, as in the first"
                raise DataError(f"{path}, line {number}: {len(fields)} columns, expected {wanted}: {line!r}")
            if not fields[word]:
                raise DataError(f"{path}, line {number}: the word is empty")
            if not words:
                first = number
            words.append(fields[word])
            tags.append(fields[tag])


def without_brackets(tags):
    if tags[0][:1] not in ("(", "*"):
        return tags
    found, inside = [], ""
    for tag in tags:
        if tag.startswith("("):
            inside = tag.strip("(*)")
            found.append(f"B-{inside}")
        else:
            found.append(f"I-{inside}" if inside else "O")
        if tag.endswith(")"):
            inside = ""
    return found


def to_bio(tags, outside=()):
    """The tags of one sentence as BIO, whatever scheme they are in: IOB1, BIO, BIOES (or BILOU), or broken.

    An entity begins where conlleval has it begin: at B and S, after O, E and S, and where the type changes. So
    "I-PER" after "O" becomes "B-PER", and the entities that conlleval counts are the same before and after.
    outside: types of entities that are read as O. Raises DataError at a tag that is none.
    """
    found, before, kind_before = [], "O", ""
    for tag in tags:
        if not isinstance(tag, str) or not TAG.fullmatch(tag):
            raise DataError(f"the tag {tag!r} is not O or B-, I-, E- or S- and a type")
        prefix, _, kind = tag.partition("-")
        if prefix == "O" or kind in outside:
            prefix, kind = "O", ""
            found.append("O")
        elif prefix in "BSU" or before in "OESLU" or kind != kind_before:
            found.append(f"B-{kind}")
        else:
            found.append(f"I-{kind}")
        before, kind_before = prefix, kind
    return found


# ----------------------------------------------------------------------------
# Questions


def squad_questions(path):
    """Yield (id, question, context, [(answer, start character), ...]) of a SQuAD file (v1.1, v2) or a ReCoRD file.

    A question of v2 that is_impossible has no answers. ReCoRD's queries hold "@placeholder", the entity to be found.
    """
    try:
        text = "\n".join(text for _, text in lines(path))
        articles = json.loads(text)["data"]
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except (KeyError, TypeError):
        raise DataError(f'{path}: not a SQuAD file: expected an object with "data"') from None
    for number, article in enumerate(articles, 1):
        try:
            if "passage" in article:
                parts = [{"context": article["passage"]["text"], "qas": article["qas"]}]
                question, start = "query", "start"
            else:
                parts, question, start = article["paragraphs"], "question", "answer_start"
            for part in parts:
                for qa in part["qas"]:
                    answers = [] if qa.get("is_impossible") else [(a["text"], int(a[start])) for a in qa["answers"]]
                    texts = (qa[question], part["context"], *(answer for answer, _ in answers))
                    if not all(isinstance(text, str) for text in texts):
                        raise TypeError("a question, context or answer that is not text")
                    yield str(qa["id"]), qa[question], part["context"], answers
        except KeyError as error:
            raise DataError(f"{path}: article {number} has no {error} where SQuAD's layout has one") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: article {number} is not in SQuAD's layout: {error}") from None


def flat_questions(path):
    """The same of a table with a question a row: id (or the row's number), question, context and answers."""
    for number, row in rows(path, ("question", "context", "answers")):
        try:
            answers = list(zip(row["answers"]["text"], map(operator.index, row["answers"]["answer_start"]), strict=True))
        except (KeyError, TypeError, ValueError):
            raise DataError(f'{path}, line {number}: expected answers {{"text": [...], "answer_start": [...]}}, got '
                            f'{row["answers"]!r}') from None  # fmt: skip
        if not (isinstance(row["question"], str) and isinstance(row["context"], str)):
            raise DataError(f"{path}, line {number}: question and context must be text")
        yield str(row.get("id", number)), row["question"], row["context"], answers


# ----------------------------------------------------------------------------
# The families' examples. task: an eval.tasks.Task; what its fields mean is said there


def read_texts(path, task, split, counts):
    """SC: yield (text, label) of a table."""
    columns, label, ragged, count = task.columns or ("text",), task.label or "label", [], 0
    form = task.form or "\n".join("{}" for _ in columns)
    places = [name for _, name, _, _ in Formatter().parse(form) if name is not None]
    if any(places) or len(places) != len(columns):
        raise DataError(f"form={form!r}: needs one {{}} for each of the columns {', '.join(columns)}")
    for count, (number, row) in enumerate(rows(path, (*columns, label), ragged), 1):
        parts, name = [row[column] for column in columns], row[label]
        if not all(isinstance(part, str) for part in parts) or not isinstance(name, (str, int)) or name == "":
            raise DataError(f"{path}, line {number}: expected text and a label, got {parts} and {name!r}")
        name = str(name)
        if task.names and name.isdecimal() and int(name) < len(task.names):
            name = task.names[int(name)]
        counts["empty texts"] += not any(part.strip() for part in parts)
        yield form.format(*parts), name
    if len(ragged) > count / 100:  # a few are known in GLUE's files
        raise DataError(f"{path}: {len(ragged)} lines have other numbers of fields than the header, first {ragged[0]}")
    counts["lines left out, with another number of fields than the header"] += len(ragged)


def read_sentences(path, task, split, counts):
    """TC: yield (words, tags in BIO) of CoNLL columns or of a table."""
    if suffix(path) == ".jsonl" or path.startswith("hf:"):
        column, label = (*task.columns, "tokens")[0], task.label or "label"
        found = ((number, row[column], row[label]) for number, row in rows(path, (column, label)))
    else:
        try:
            word, tag = int((*task.columns, 0)[0]), int(task.label or -1)
        except ValueError:
            raise DataError(f"columns={task.columns}, label={task.label}: {path} has no header; give the numbers of "
                            "the word's and the tag's column, from 0") from None  # fmt: skip
        found = conll_sentences(path, word, tag)
    for number, words, tags in found:
        if not (isinstance(words, list) and isinstance(tags, list) and len(words) == len(tags)):
            raise DataError(f"{path}, line {number}: expected two lists of one length, got {words!r} and {tags!r}")
        if odd := [word for word in words if not isinstance(word, str)]:
            raise DataError(f"{path}, line {number}: expected words, got {odd[0]!r}")
        if not words:
            counts["sentences without a word, left out"] += 1
            continue
        try:
            bio = to_bio(tags, task.outside)
        except DataError as error:
            raise DataError(f"{path}, sentence of line {number}: {error}") from None
        counts["tags rewritten as BIO"] += sum(new != old for new, old in zip(bio, tags))
        yield words, bio


def read_questions(path, task, split, counts):
    """QA: yield (id, question, context, answers), the answers at places where the context has them.

    An answer that is nowhere in its context is left out of training, and a question without another one with it. To be
    tested on, its text is enough: it is kept, with -1 as its start.
    """
    flat = suffix(path) == ".jsonl" or path.startswith("hf:")
    ids = set()
    for id, question, context, answers in flat_questions(path) if flat else squad_questions(path):
        if id in ids:
            raise DataError(f"{path}: the id {id!r} for the second time")
        ids.add(id)
        counts["empty questions or contexts"] += not (question.strip() and context.strip())
        placed = [(answer, placed_at(answer, start, context)) for answer, start in answers]
        counts["answers moved to the nearest place that has their text"] += sum(
            now not in (start, -1) for (_, start), (_, now) in zip(answers, placed))  # fmt: skip
        there = [(answer, start) for answer, start in placed if start >= 0]
        if split == "train" and answers and not there:
            counts["questions left out, as no answer is in the context"] += 1
            continue
        done = "left out" if split == "train" else "kept"
        counts[f"answers {done} that are not in the context"] += len(placed) - len(there)
        yield id, question, context, there if split == "train" else placed


def placed_at(answer, start, context):
    """Where the answer is in its context: at `start`, else at the place nearest to that, else -1."""
    if answer and start >= 0 and context.startswith(answer, start):
        return start
    places, at = [], context.find(answer) if answer else -1
    while at >= 0:
        places.append(at)
        at = context.find(answer, at + 1)
    return min(places, key=lambda place: abs(place - start), default=-1)


def read_pairs(path, task, split, counts):
    """IR, training: yield (query, document) of a table, or of the questions and contexts of a SQuAD file."""
    if suffix(path) == ".json":
        for _, question, context, answers in squad_questions(path):
            if answers:
                yield question, context
            counts["questions left out, as they have no answer"] += not answers
    else:
        columns = task.columns or ("query", "document")
        if len(columns) != 2:
            raise DataError(f"columns={columns}: pairs have two, of the query and of the document")
        for number, row in rows(path, columns):
            pair = row[columns[0]], row[columns[1]]
            if not all(isinstance(text, str) for text in pair):
                raise DataError(f"{path}, line {number}: expected two texts, got {pair}")
            counts["empty queries or documents"] += not all(text.strip() for text in pair)
            yield pair


def read_texts_by_id(path, wanted=None):
    """A file of documents or queries as {id: text}, and how many it has. Raises DataError, also for an id used twice.

    A line is an object with "_id" (BEIR) or "docid" (MLDR), "text", and maybe a "title", which is put before the text.
    wanted: a collection of ids; the others are left out, so that a corpus of any size needs little memory.
    """
    texts, count = {}, 0
    for number, record in json_rows(path):
        count += 1
        key, text = record.get("_id", record.get("docid")), record.get("text")
        if not isinstance(key, (str, int)) or not isinstance(text, str):
            raise DataError(f'{path}, line {number}: expected "_id" and "text", got {", ".join(record) or "nothing"}')
        key = str(key)
        if wanted is not None and key not in wanted:
            continue
        if key in texts:
            raise DataError(f"{path}, line {number}: the id {key!r} for the second time")
        texts[key] = f"{record['title']} {text}" if record.get("title") else text
    return texts, count


def read_qrels(path):
    """Judgements as {query id: {document id: grade}}, and {query id: text} where the file has it.

    path: .tsv with the columns query-id, corpus-id and score (BEIR), whose queries are in a file of their own; or
        .jsonl with query_id, query and positive_passages (MLDR), which are of grade 1.
    """
    qrels, queries = {}, {}

    def add(number, query, document, grade):
        if qrels.setdefault(query, {}).setdefault(document, grade) != grade:
            raise DataError(f"{path}, line {number}: another grade for query {query!r} and document {document!r}")

    if suffix(path) == ".jsonl":
        for number, row in rows(path, ("query_id", "query", "positive_passages")):
            query = str(row["query_id"])
            if query in queries:
                raise DataError(f"{path}, line {number}: the id {query!r} for the second time")
            queries[query] = row["query"]
            for passage in row["positive_passages"]:
                if not isinstance(passage, dict) or "docid" not in passage:
                    raise DataError(f'{path}, line {number}: a passage without "docid"')
                add(number, query, str(passage["docid"]), 1)
    else:
        for number, row in rows(path, ("query-id", "corpus-id", "score")):
            if not row["score"].removeprefix("-").isdecimal():
                raise DataError(f"{path}, line {number}: the score {row['score']!r} is not a whole number")
            add(number, row["query-id"], row["corpus-id"], int(row["score"]))
    return qrels, queries
