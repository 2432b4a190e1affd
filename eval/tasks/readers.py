"""The examples of the four task families, and the readers of their files.

First come the examples and the file formats, then the readers of each family and of the parts of a retrieval set. All
text is UTF-8, plain or gzipped. What cannot be read raises a DataError with the file and line.

Arguments that several readers take: `task` is an eval.tasks.registry.Task. `counts` is a Counter to which a reader adds
how often it applied a rule.
"""

import csv
import glob
import re
import zlib
from contextlib import suppress
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import NamedTuple

from data.files import MALFORMED
from data.sources import END, decode, format_of, json_object, read_lines
from errors import DataError, progress
from eval.tasks.metrics import entities

SPLITS = ("train", "validation", "test")
TABLES = (".tsv", ".txt", ".csv", ".jsonl")
OTHER_FORM = 'docs/finetuning.md, "Data sets in another form", has lines that convert some'
csv.field_size_limit(2**31 - 1)  # the default of 128 KB is too small for some documents


# ----------------------------------------------------------------------------
# Examples. `key` is what never lies on both sides of a random split. `gold` is what a model should predict, `labels`
# the classes in it.


class Text(NamedTuple):
    """Sequence classification: a text as the model sees it, and the name of its class."""

    text: str
    label: str  # in regression a number

    key = property(lambda self: self.text)
    gold = property(lambda self: self.label)
    labels = property(lambda self: [self.label])


class Sentence(NamedTuple):
    """Token classification: words, and the tag of each in BIO: "O", "B-PER", "I-PER"."""

    words: list
    tags: list

    key = property(lambda self: tuple(self.words))
    gold = labels = property(lambda self: self.tags)


class Question(NamedTuple):
    """Extractive question answering. An answer of a test set that is not in the context starts at -1."""

    id: str
    question: str
    context: str
    answers: list  # of (text, first character in the context); [] if there is no answer

    key = property(lambda self: self.context)
    gold = property(lambda self: [text for text, _ in self.answers])


class Pair(NamedTuple):
    """Information retrieval, training: a query and a document that answers it."""

    query: str
    document: str

    key = property(lambda self: self.query)


class Query(NamedTuple):
    """Information retrieval, evaluation: a query, and the grades of some documents. Above 0 they are relevant."""

    id: str
    text: str
    grades: dict  # {document id: grade}
    corpus: str  # the name of the corpus that it searches
    set: str = ""  # the name of its set, if a task has several

    key = query = property(lambda self: self.text)
    gold = property(lambda self: self.grades)
    document = ""


def by_set(examples):
    """Return {name of the set: its examples}; the name is "" where there is one set only."""
    sets = {}
    for example in examples:
        sets.setdefault(getattr(example, "set", ""), []).append(example)
    return sets


# ----------------------------------------------------------------------------
# Files


def find_files(path):
    """Return the files of a path: itself, or itself with .gz, or the sorted matches of a pattern; [] if none exists."""
    for name in (path, path + ".gz"):
        if Path(name).is_file():
            return [name]
    return sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())


def lines(path):
    """Yield (location, text) of each line of a file, without the line end; location is "PATH, line N", from 1."""
    numbered = read_lines(Path(path), 0, END)
    try:
        for number, line in progress(numbered, Path(path).name, unit=" lines", unit_scale=True, delay=3, leave=False):
            yield f"{path}, line {number}", decode(line, number)
    except (DataError, OSError, EOFError, zlib.error) as error:  # OSError: also of a damaged .gz or .zst
        raise DataError(f"{path}: {error}") from None


# ----------------------------------------------------------------------------
# Tables


def rows(path, columns, counts):
    """Yield (location, {column: value}) for each row of a table; location is "PATH, line N", for error messages.

    path: .tsv or .txt (tabs, no quoting, as in GLUE), .csv (usual quoting) or .jsonl (an object a line). In
        JSON, a column that only the first row has is None in the others.
    columns: {name: type} of those that each row must have. If all names are numbers that are not in the first line of
        .tsv, .txt or .csv, the file has no header, and they count its columns from 0.
    counts: where to count the lines with more or fewer fields than the first, which are left out if they are at most
        1 % (GLUE's files have a few), and the fields of .tsv or .txt that look quoted.
    """
    first = {}
    kind = format_of(Path(path))
    if kind not in TABLES:
        raise DataError(f"{path}: a table is a .tsv, .txt, .csv or .jsonl file (each also .gz or .zst); {OTHER_FORM}")
    if kind == ".jsonl":
        table = ((location, json_object(text, location)) for location, text in lines(path) if text.strip())
    else:
        table = delimited_rows(path, kind, columns, counts)
    for location, row in table:
        first = first or row
        for column, expected in columns.items():
            if column not in first:
                raise DataError(
                    f"{path}, line 1: no column {column!r}; the columns are {[*row]}, divided by commas in a .csv, by "
                    "tabs in a .tsv or .txt; name yours by --columns and --label (sc, tc), by numbers from 0 if there "
                    f"is no header; {OTHER_FORM}"
                )
            if not isinstance(row.setdefault(column), expected):
                kind = getattr(expected, "__name__", expected)  # a union has no name
                raise DataError(f"{location}: {column} is {row[column]!r:.200}, expected {kind}")
        yield location, row


def delimited_rows(path, kind, columns, counts):
    """Yield (location, {column: text}) for each row of a .tsv, .txt or .csv file."""
    if kind == ".csv":
        table = csv_fields(path, strict=True)
    else:
        table = ((location, text.split("\t")) for location, text in lines(path))
    first, fields = next(table, (path, []))
    header = [name.strip() for name in fields]
    numbers = [*map(str, range(len(fields)))]
    if columns.keys() <= {*numbers} and not columns.keys() <= {*header}:  # there is no header: the first line is a row
        table = chain([(first, fields)], table)
        header = numbers
    if len({*header}) < len(header):
        raise DataError(f"{first}: two columns have the same name: {header}")
    n_right = 0
    wrong = []
    quoted = 'lines with a field such as "a ""b""", whose quotes stay: only .csv has quoting, and that once'
    for location, fields in table:
        counts[quoted] += any(re.fullmatch('".*"".*"', field) for field in fields)
        if len(fields) == len(header):
            n_right += 1
            yield location, dict(zip(header, fields))
        elif any(fields):
            wrong.append(f"{location}: {len(fields)} fields, but line 1 has {len(header)}")
    if len(wrong) > n_right / 100:
        raise DataError(f"{wrong[0]}; and {len(wrong) - 1} more such lines")
    counts["lines left out, with another number of fields than the first"] += len(wrong)


def csv_fields(path, **dialect):
    """Yield (location, texts) for each row, which begins on that line, of a file with the quoting of .csv."""
    reader = csv.reader((text + "\n" for _, text in lines(path)), **dialect)
    number = 1
    try:
        for fields in reader:
            yield f"{path}, line {number}", fields
            number = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"{path}, line {number}: {error}. Is a quote missing or too much in this row?") from None


# ----------------------------------------------------------------------------
# CoNLL columns


# "# text = ..." and "# newdoc" in CoNLL-U style files stand before the first word of a sentence. A word "#" does not
# match, because other columns follow it.
COMMENT = re.compile(r"# ?[\w.:-]+ = |# (newdoc|newpar)\b")
TAG = re.compile(r"O|[BIES]-.*\S")


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
# The families' examples


def read_texts(path, task, counts):
    """Yield the Texts of a table: `task.columns` filled into `task.form`, with the class in `task.label`."""
    columns = task.columns or ("text",)
    label = task.label.strip() or "label"
    form = task.form or "\n".join(["{}"] * len(columns))
    for location, row in rows(path, dict.fromkeys(columns, str) | {label: object}, counts):
        yield Text(fill(form, map(row.get, columns)), read_label(row[label], task, location))


def fill(form, texts):
    """Return a form with a text for each {} in it. Other braces stay as they are."""
    before, *after = form.split("{}")
    return before + "".join(map("".join, zip(texts, after)))


def read_label(value, task, location):
    """Return the label of a text: the name of its class, or in regression a number."""
    if value is None or not str(value).strip():
        expected = 'a label: add it or delete the row; to predict for it, see docs/finetuning.md, "Predictions"'
    elif task.regression:
        expected = f"a number, as metric={task.metric} needs"
        with suppress(ValueError, TypeError, OverflowError):
            if isfinite(number := float(value)):
                return number
    else:
        expected = "one class: text or a whole number (several are not supported; to predict numbers, metric=pearson)"
        if isinstance(value, str | int):
            return dict(zip("0123456789", task.names)).get(str(value), str(value))
    raise DataError(f"{location}: the label is {value!r:.200}, expected {expected}")


def read_sentences(path, task, counts):
    """Return the Sentences of a file in CoNLL columns, with tags in BIO.

    Tabs separate the columns, or spaces in a line without a tab. A blank line or a -DOCSTART- line ends a sentence. The
    numbers of the words' and the tags' columns count from 0, or from the end if negative.
    """
    columns = task.columns[0] if task.columns else "0", task.label or "-1"
    given = "--columns={} --label={}".format(*columns)
    try:
        word, tag = map(int, columns)
    except ValueError:
        raise DataError(f"{given}: {path} has no header; give the numbers of both columns, from 0") from None
    least = max(2, word + 1, -word, tag + 1, -tag)
    sentences = [Sentence([], [])]  # the last one is being read
    for location, line in lines(path):
        words, tags = sentences[-1]
        if line.split()[:1] in ([], ["-DOCSTART-"]):
            sentences.append(Sentence([], []))
        elif words or not COMMENT.match(line):
            fields = line.split("\t") if "\t" in line else re.split(" +", line.strip(" "))
            if len(fields) < least:
                raise DataError(f"{location}: {len(fields)} columns, expected {least}: {line!r}")
            if not TAG.fullmatch(fields[tag]):
                raise DataError(
                    f"{location}: {fields[tag]!r} is no tag: O, or B-, I-, E- or S- and a type; {OTHER_FORM}"
                )
            words.append(fields[word])
            tags.append(fields[tag])
    found = [Sentence(words, to_bio(tags, task.outside)) for words, tags in sentences if words]
    if 2 * sum(words[0] == "1" for words, _ in found) > len(found):
        raise DataError(f"{path}: the words are 1, 2, 3, ...; {given}: give the number of the words' column")
    return found


def read_questions(path, task, counts):
    """Yield the Questions of a table. An answer starts where the context has its text, else at -1; "" is no answer."""
    for number, (location, row) in enumerate(rows(path, {"question": str, "context": str, "answers": dict}, counts), 1):
        context = row["context"]
        given = row["answers"]
        try:
            found = zip(given["text"], given["answer_start"], strict=True)
            answers = [(text, find_answer(text, int(start), context, counts)) for text, start in found if text != ""]
            counts["answers without text, which are read as no answer"] += len(given["text"]) - len(answers)
        except MALFORMED:
            raise DataError(
                f'{location}: expected answers {{"text": [...], "answer_start": [...]}}, got {given!r:.200}'
            ) from None
        yield Question(str(row.get("id", number)), row["question"], context, answers)


def find_answer(answer, start, context, counts):
    """Return where the answer is in the context: at `start`, else at the nearest place that has it, else -1.

    If `start` is wrong, it may count bytes of UTF-8, or units of UTF-16, whose numbers are between both.
    """
    if start >= 0 and context.startswith(answer, start):
        return start
    places = {}  # {place: how far it is from start}
    for match in re.finditer(f"(?={re.escape(answer)})", context):
        n = match.start()
        places[n] = min(abs(n - start), abs(len(context[:n].encode(errors="replace")) - start))
    counts["answers moved to the nearest place that has them" if places else "answers not in their context"] += 1
    return min(places, key=places.get, default=-1)


def to_train_on(questions, counts):
    """Return Questions without the answers that are not in their context. Those that had no other are left out.

    Testing needs only the text of an answer, so there all are kept.
    """
    kept = []
    for question in questions:
        inside = [answer for answer in question.answers if answer[1] >= 0]
        counts["questions with several answers, of which the first is learned"] += len({*inside}) > 1
        if inside or not question.answers:
            kept.append(question._replace(answers=inside))
        else:
            counts["questions left out, as no answer is in the context"] += 1
    return kept


def read_pairs(path, task, counts):
    """Yield the Pairs of a table with query and document."""
    for _, row in rows(path, {"query": str, "document": str}, counts):
        yield Pair(row["query"], row["document"])


# ----------------------------------------------------------------------------
# Retrieval sets: what BEIR's loader accepts, read as it reads it. Of lines with the same ids the last one counts.


def read_texts_by_id(path, counts, form="", wanted=None):
    """Return BEIR's file of documents or queries, or those that a pattern matches, as {id: text}.

    A line is an object with "_id", "text", and maybe a "title". wanted: ids to keep, so that a few documents of a large
    corpus take little memory; None keeps all. form: of a document with a title; BEIR's is "{} {}". It is empty for
    queries: their title is not read, and those that are not judged may have no text.
    """
    texts = {}
    for file in find_files(path):
        for location, row in rows(file, {"_id": str | int, "text": str if form else object}, counts):
            id, title, text = str(row["_id"]), row.get("title"), row["text"]
            if form and title and not isinstance(title, str):
                raise DataError(f"{location}: title is {title!r:.200}, expected text or null")
            if wanted is None or id in wanted:
                counts["lines left out, as a later one has the same _id"] += id in texts
                texts[id] = (fill(form, (title, text)) if title else text).strip() if form else text
    if not texts:
        raise DataError(f"{path}: there are no texts in it, or none that are judged")
    return texts


def read_qrels(path, split, counts):
    """Return BEIR's judgments, a .tsv or those that a pattern matches, as {query id: {document id: grade}}.

    The first line of each is a header, whatever it says. Others begin with a query's id, a document's id and a grade.
    """
    qrels = {}
    for file in find_files(path):
        for number, (location, fields) in enumerate(csv_fields(file, delimiter="\t")):
            try:
                query, document, grade = *fields[:2], int(fields[2].removesuffix(".0"))
            except MALFORMED:
                if number == 0 or not fields:  # the header, or a blank line
                    continue
                raise DataError(
                    f"{location}: expected query-id, corpus-id and score, a whole number, with tabs between them, "
                    f"got {fields!r:.200}; {OTHER_FORM}"
                ) from None
            if number == 0:
                counts[f"{split}: judgments left out, as BEIR takes the first line for a header"] += 1
                continue
            grades = qrels.setdefault(query, {})
            counts[f"{split}: judgments left out, as a later line has the same ids"] += document in grades
            grades[document] = grade
    return qrels


READERS = {"sc": read_texts, "tc": read_sentences, "qa": read_questions, "ir": read_pairs}  # by family
