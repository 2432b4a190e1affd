"""The examples of the four task families, and the readers of their files.

First come the examples and the file formats, then the readers of each family and of the parts of a retrieval set. All
text is UTF-8, plain or gzipped. What cannot be read raises a DataError with the file and line.

Arguments that several readers take: `task` is an eval.tasks.registry.Task. `split` is "train", "validation" or "test",
or "new" for what a saved model predicts, which may have no labels. `counts` is a Counter to which a reader adds how
often it applied a rule.
"""

import csv
import glob
import gzip
import json
import re
import zlib
from collections import Counter
from contextlib import suppress
from itertools import chain, dropwhile, groupby
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from data.files import MALFORMED
from data.sources import decode
from errors import DataError, progress
from eval.tasks.metrics import entities

SPLITS = ("train", "validation", "test")
STDIN = "/dev/stdin"  # read as JSON lines
csv.field_size_limit(2**31 - 1)  # the default of 128 KB is too small for some documents


# ----------------------------------------------------------------------------
# Examples. `key` is what never lies on both sides of a random split. `gold` is what a model should predict, None if
# that is not known; `labels` are all that it can predict for the example.


class Text(NamedTuple):
    """Sequence classification: a text as the model sees it, and the name of its class."""

    text: str
    label: str  # in regression a number

    key = property(lambda self: self.text)
    labels = property(lambda self: [self.label])
    gold = property(lambda self: self.label)


class Sentence(NamedTuple):
    """Token classification: words, and the tag of each in BIO: "O", "B-PER", "I-PER"."""

    words: list
    tags: list

    key = property(lambda self: tuple(self.words))
    labels = property(lambda self: self.tags)
    gold = property(lambda self: self.tags)


class Question(NamedTuple):
    """Extractive question answering. An answer of a test set that is not in the context starts at -1."""

    id: str
    question: str
    context: str
    answers: list  # of (text, first character in the context); [] if there is no answer

    key = property(lambda self: self.context)
    gold = property(lambda self: self.answers if self.answers is None else [text for text, _ in self.answers])


class Pair(NamedTuple):
    """Information retrieval, training: a query and a document that answers it."""

    query: str
    document: str


# ----------------------------------------------------------------------------
# Files


def find_files(path):
    """Return the files of a path: itself, or itself with .gz, or the sorted matches of a pattern; [] if none exists."""
    found = [name for name in (path, path + ".gz") if Path(name).is_file()]
    return found[:1] or sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())


def file_format(path):
    """Return "jsonl" for a.jsonl, for a.jsonl.gz and for standard input."""
    return "jsonl" if path == STDIN else Path(path.lower().removesuffix(".gz")).suffix.removeprefix(".")


def lines(path):
    """Yield (number, text) of each line of a file, without the line end. Numbers count from 1."""
    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as stream:
        bar = progress(stream, Path(path).name, unit=" lines", unit_scale=True, delay=3, leave=False)
        try:
            for number, line in enumerate(bar, 1):
                yield number, decode(line.removesuffix(b"\n"), number)
        except (DataError, gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: {error}") from None


# ----------------------------------------------------------------------------
# Tables

DELIMITED = ("tsv", "txt", "csv")


def rows(path, columns, counts=None, optional=""):
    """Yield (location, {column: value}) for each row of a table; location is "PATH, line N", for error messages.

    path: .tsv or .txt (tabs, no quoting, as in GLUE), .csv (usual quoting) or .jsonl (an object a line).
    columns: {name: type} of those that each row must have. If all names are numbers that are not in the first line of
        .tsv, .txt or .csv, the file has no header, and they count its columns from 0.
    counts: where to count the lines of those with more or fewer fields than the first, which are left out if they are
        at most 1 % (GLUE's files have a few). Without it each of them is an error.
    optional: one of the columns, whose value is None where it is missing or empty.
    """
    formats, kind = dict.fromkeys(DELIMITED, delimited_rows) | {"jsonl": json_rows}, file_format(path)
    if kind not in formats:
        raise DataError(f"{path}: a table is a .tsv, .txt, .csv or .jsonl file (each also .gz)")
    for number, row in formats[kind](path, columns, counts):
        location = f"{path}, line {number}"
        for column, expected in columns.items():
            if column == optional and row.get(column) in (None, "", [], {}):
                row[column] = None
            elif column not in row:
                hint = " (sc: without such names, give numbers, from 0)"
                line, hint = (1, hint) if kind in DELIMITED else (number, "")
                raise DataError(f"{path}, line {line}: no column {column}; the columns are {', '.join(row)}{hint}")
            elif not isinstance(row[column], expected):
                expected = getattr(expected, "__name__", expected)
                raise DataError(f"{location}: {column} is {row[column]!r:.200}, expected {expected}")
        yield location, row


def delimited_rows(path, columns, counts):
    if file_format(path) == "csv":
        reader = csv.reader((text + "\n" for _, text in lines(path)), strict=True)
        table = ((reader.line_num, fields) for fields in reader)
    else:
        table = ((number, text.split("\t")) for number, text in lines(path))
    number, wrong = 0, []
    try:
        _, header = next(table, (0, []))
        if not {*columns} <= {*header} and all(map(str.isdecimal, columns)):  # there is none
            table, header = chain([(1, header)], table), [*map(str, range(len(header)))]
        if len({*header}) < len(header):
            raise DataError(f"{path}, line 1: two columns have the same name: {', '.join(header)}")
        for number, fields in table:
            if len(fields) == len(header):
                yield number, dict(zip(header, fields))
            elif fields not in ([], [""]):  # an empty line
                wrong.append(f"{path}, line {number}: {len(fields)} fields, but line 1 has {len(header)}")
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}") from None
    if len(wrong) > (number / 100 if counts is not None else 0):
        raise DataError(f"{wrong[0]}; and {len(wrong) - 1} more such lines")
    if wrong:
        counts["lines left out, with another number of fields than the first"] += len(wrong)


def json_rows(path, *_):
    """Yield (line number, object) for each line of JSON."""
    for number, text in lines(path):
        if text and not text.isspace():
            try:
                record = json.loads(text)
            except (ValueError, RecursionError) as error:  # the latter: lists or objects are nested too deep
                raise DataError(f"{path}, line {number}: not JSON: {getattr(error, 'msg', error)}") from None
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number}: expected a JSON object, got a {type(record).__name__}")
            yield number, record


# ----------------------------------------------------------------------------
# CoNLL columns


# "# text = ..." and "# newdoc" in CoNLL-U style files, "#begin document" in CoNLL-2012. Comments stand before the first
# word of a sentence. A word "#" matches none of these patterns, because other columns follow it.
COMMENT = re.compile(r"# ?[\w.:-]+ = |# (newdoc|newpar)\b|#(begin|end) document\b")
TAG = re.compile(r"O|[BIES]-.+")


def conll_sentences(path, word=0, tag=-1):
    """Yield (location, words, tags) for each sentence of a file in CoNLL columns; location is that of its first word.

    Tabs separate the columns, or spaces in a line without a tab. A blank line or a -DOCSTART- line ends a sentence.
    word, tag: the numbers of their columns, counted from 0, or from the end if negative.
    """
    least = max(2, *(column + 1 if column >= 0 else -column for column in (word, tag)))
    for is_end, numbered in groupby(lines(path), key=lambda line: line[1].split()[:1] in ([], ["-DOCSTART-"])):
        numbered = [] if is_end else list(dropwhile(lambda line: COMMENT.match(line[1]), numbered))
        words, tags = [], []
        for number, line in numbered:
            fields = line.split("\t") if "\t" in line else [field for field in line.split(" ") if field]
            if len(fields) < least:
                raise DataError(f"{path}, line {number}: {len(fields)} columns, expected {least}: {line!r}")
            words.append(fields[word])
            tags.append(fields[tag])
        if words:
            yield f"{path}, sentence of line {numbered[0][0]}", words, without_brackets(tags)


def without_brackets(tags):
    """Return CoNLL-2012's tags as BIO: (PERSON* *) (GPE) is B-PERSON I-PERSON B-GPE. Other tags stay unchanged."""
    if tags[0][:1] not in ("(", "*"):
        return tags
    bio, kind = [], ""
    for tag in tags:
        kind = tag.strip("(*)") or kind
        bio.append(f"{'B' if tag.startswith('(') else 'I'}-{kind}" if kind else "O")
        kind = "" if tag.endswith(")") else kind
    return bio


def to_bio(tags, outside=()):
    """Return the tags of a sentence as BIO. They may be IOB1, BIO or BIOES, or break their scheme.

    The entities are those that conlleval counts: "I-PER" after "O" becomes "B-PER". outside: types that become O.
    """
    bio = ["O"] * len(tags)
    for kind, begin, end in entities(tags):
        if kind not in outside:
            bio[begin:end] = [f"B-{kind}"] + [f"I-{kind}"] * (end - begin - 1)
    return bio


# ----------------------------------------------------------------------------
# Questions


def squad_questions(path):
    """Yield (location, id, question, context, [(answer, start), ...]) of a SQuAD file (v1.1 or v2) or a ReCoRD file.

    ReCoRD's queries hold "@placeholder" for the entity to find.
    """
    location, text = path, "\n".join(text for _, text in lines(path))
    try:
        for number, article in enumerate(json.loads(text)["data"], 1):
            location = f"{path}, article {number}"
            record = "passage" in article
            question, start = ("query", "start") if record else ("question", "answer_start")
            for paragraph in [article["passage"] | article] if record else article["paragraphs"]:
                for qa in paragraph["qas"]:
                    answers = [(a["text"], int(a[start])) for a in qa["answers"]]
                    yield location, qa["id"], qa[question], paragraph["text" if record else "context"], answers
    except MALFORMED as error:
        expected = '{"data": [{"paragraphs": [{"context": "", "qas": [{"id": "", "question": "", "answers": []}]}]}]}'
        raise DataError(f"{location}: not in SQuAD's layout ({error!r}): expected {expected}") from None


def table_questions(path, optional):
    """Yield the same from a table with question, context, answers, and maybe id (default: the row's number)."""
    columns = {"question": str, "context": str, "answers": dict}
    for number, (location, row) in enumerate(rows(path, columns, optional=optional), 1):
        answers = row["answers"]
        if answers is not None:
            try:
                answers = list(zip(answers["text"], map(int, answers["answer_start"]), strict=True))
            except MALFORMED:
                expected = '{"text": [...], "answer_start": [...]}'
                raise DataError(f"{location}: expected answers {expected}, got {answers!r:.200}") from None
        yield location, row.get("id", number), row["question"], row["context"], answers


def find_answer(answer, start, context):
    """Return where the answer is in the context: at `start`, else at the nearest place to it, else -1."""
    if answer and start >= 0 and context.startswith(answer, start):
        return start
    found = [i for i in range(len(context)) if answer and context.startswith(answer, i)]
    return min(found, key=lambda i: abs(i - start), default=-1)


# ----------------------------------------------------------------------------
# The families' examples


def read_texts(path, task, split, counts):
    """Yield the Texts of a table: `task.columns` filled into `task.form`, with the class in `task.label`."""
    columns, label, new = task.columns or ("text",), task.label or "label", split == "new"
    form = (task.form or "\n".join("{}" for _ in columns)).split("{}")
    if len(form) != len(columns) + 1:
        raise DataError(f"form={task.form!r}: needs one {{}} for each of the columns {', '.join(columns)}")
    expected = dict.fromkeys(columns, str) | {label: object}
    for location, row in rows(path, expected, None if new else counts, label if new else ""):
        text = form[0] + "".join(row[column] + after for column, after in zip(columns, form[1:]))
        yield Text(text, None if new and row[label] is None else read_label(row[label], task, location))


def read_label(value, task, location):
    """Return the label of a text: the name of its class, or in regression a number."""
    expected = "one class: text or a whole number (several are not supported; to predict numbers, metric=pearson)"
    if task.regression:
        expected = f"a number, as metric={task.metric} needs"
        with suppress(ValueError, TypeError, OverflowError):
            if isfinite(number := float(value)):
                return number
    elif isinstance(value, str | int) and value != "" and not isinstance(value, bool):
        return {str(i): name for i, name in enumerate(task.names)}.get(str(value), str(value))
    raise DataError(f"{location}: the label is {value!r:.200}, expected {expected}")


def read_sentences(path, task, split, counts):
    """Yield the Sentences of a file in CoNLL columns or of a table, with tags in BIO."""
    new = split == "new"
    if file_format(path) == "jsonl":
        column = next((name for name in task.columns if not name.isdecimal()), "tokens")  # CoNLL columns have numbers
        label = task.label or "label"
        table = rows(path, {column: list, label: list}, optional=label if new else "")
        found = ((location, row[column], row[label]) for location, row in table)
    else:
        given = f"--columns={','.join(task.columns) or 0} --label={task.label or -1}"
        try:
            word, tag = int((*task.columns, 0)[0]), int(task.label or -1)
        except ValueError:
            raise DataError(f"{given}: {path} has no header; give the numbers of both columns, from 0") from None
        found = [*conll_sentences(path, word, tag)]
        counts_up = [words == [*map(str, range(1, len(words) + 1))] for _, words, _ in found if len(words) > 1]
        if 2 * sum(counts_up) > len(counts_up):
            raise DataError(f"{found[0][0]}: the words are 1, 2, 3, ...; {given}: give the number of the words' column")
    for location, words, tags in found:
        known = ["O"] * len(words) if tags is None else tags
        if len(words) != len(known) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{location}: expected words and as many tags, got {words!r:.200} and {tags!r:.200}")
        if wrong := [tag for tag in known if not TAG.fullmatch(str(tag))]:
            raise DataError(f"{location}: the tag {wrong[0]!r} is not O or B-, I-, E- or S- and a type")
        if words or new:
            yield Sentence(words, None if tags is None else to_bio(tags, task.outside))


def read_questions(path, task, split, counts):
    """Yield the Questions of a SQuAD file or a table, with each answer's start where the context has its text.

    In training, an answer that is not in its context is left out, and a question that has no other answer with it.
    Testing needs only the answer's text, so there it is kept, with -1 as its start.
    """
    is_table = file_format(path) == "jsonl"
    found = table_questions(path, "answers" if split == "new" else "") if is_table else squad_questions(path)
    for location, id, question, context, given in found:
        if not all(isinstance(text, str) for text in (question, context, *(answer for answer, _ in given or ()))):
            raise DataError(f"{location}: the question, context and answers must be text")
        answers = given and [(answer, find_answer(answer, start, context)) for answer, start in given]
        if split == "train":
            inside = [(answer, start) for answer, start in answers if start >= 0]
            if answers and not inside:
                counts["questions left out, as no answer is in the context"] += 1
                continue
            answers = inside
        yield Question(str(id), question, context, answers)


def read_pairs(path, task, split, counts):
    """Yield the Pairs of a table with query and document, or of the questions and contexts of a SQuAD file."""
    if file_format(path) == "json":
        for question in read_questions(path, task, "test", Counter()):
            if question.answers:
                yield Pair(question.question, question.context)
    else:
        for _, row in rows(path, {"query": str, "document": str}):
            yield Pair(row["query"], row["document"])


# ----------------------------------------------------------------------------
# Retrieval sets


def read_texts_by_id(path, wanted=None, form=""):
    """Return a file of documents or queries as {id: text}.

    A line is an object with "_id" (BEIR) or "docid" (MLDR), "text", and maybe a "title", which goes before the text.
    wanted: ids to keep, so that a few documents of a large corpus take little memory; None keeps all. form: of a title
    and a text; "" = BEIR's, "{} {}".
    """
    texts = {}
    for location, row in rows(path, {"text": str}):
        key, text = row.get("_id", row.get("docid")), row["text"]
        key = "" if key is None else str(key)
        if not key or key in texts:
            raise DataError(f'{location}: expected an "_id" or "docid" that no other line has, got {key!r}')
        if wanted is None or key in wanted:
            texts[key] = (form or "{} {}").format(row["title"], text) if row.get("title") else text
    return texts


def read_qrels(path):
    """Return relevance judgments as {query id: {document id: grade}}, and {query id: text} if the file has it.

    path: .tsv with the columns query-id, corpus-id and score (BEIR), whose queries are in another file; or .jsonl with
        query_id, query and positive_passages (MLDR), which get grade 1.
    """
    qrels, queries, is_mldr = {}, {}, file_format(path) == "jsonl"
    beir, mldr = ("query-id", "corpus-id", "score"), {"query_id": str | int, "query": str, "positive_passages": list}
    for location, row in rows(path, mldr if is_mldr else dict.fromkeys(beir, str)):
        try:
            if is_mldr:
                query = str(row["query_id"])
                queries[query], qrels[query] = row["query"], {str(its["docid"]): 1 for its in row["positive_passages"]}
            else:
                qrels.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
        except MALFORMED as error:
            raise DataError(
                f'{location}: expected a whole number as score, or passages with "docid": {error}'
            ) from None
    return qrels, queries


READERS = {"sc": read_texts, "tc": read_sentences, "qa": read_questions, "ir": read_pairs}  # by family
