"""The examples of the four task families, and the readers of their files.

All text is UTF-8, plain or compressed (.gz, .zst). What cannot be read raises a DataError with the file and line.

Many readers take these arguments: `task`, an eval.tasks.registry.Task, and `counts`, a Counter in which a reader notes
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
OTHER_FORM = 'docs/finetuning.md, "Data sets in another form", shows how to convert some'
csv.field_size_limit(2**31 - 1)  # the default of 128 KB is too small for some documents


# ----------------------------------------------------------------------------
# Examples. A random split never puts examples with the same `key` on both sides. `gold` is what a model should predict,
# `labels` lists the classes in it.


class Text(NamedTuple):
    """Sequence classification: a text as the model sees it, and its label."""

    text: str
    label: str  # the name of a class; in regression, a number

    key = property(lambda self: self.text)
    gold = property(lambda self: self.label)
    labels = property(lambda self: [self.label])


class Sentence(NamedTuple):
    """Token classification: words, and a BIO tag for each, such as "O", "B-PER" or "I-PER"."""

    words: list
    tags: list

    key = property(lambda self: tuple(self.words))
    gold = labels = property(lambda self: self.tags)


class Question(NamedTuple):
    """Extractive question answering. In a test set, an answer that is not in the context starts at -1."""

    id: str
    question: str
    context: str
    answers: list  # (text, first character in the context) of each; [] if there is no answer

    key = property(lambda self: self.context)
    gold = property(lambda self: [text for text, _ in self.answers])


class Pair(NamedTuple):
    """Information retrieval, training: a query and a document that answers it."""

    query: str
    document: str

    key = property(lambda self: self.query)


class Query(NamedTuple):
    """Information retrieval, evaluation: a query, and the grades of some documents; above 0 means relevant."""

    id: str
    text: str
    grades: dict  # {document id: grade}
    corpus: str  # the name of the corpus that it searches
    set: str = ""  # the name of its set, if a task has several

    key = query = property(lambda self: self.text)
    gold = property(lambda self: self.grades)
    document = ""


def by_set(examples):
    """Return {name of the set: its examples}. The name is "" if there is only one set."""
    sets = {}
    for example in examples:
        sets.setdefault(getattr(example, "set", ""), []).append(example)
    return sets


# ----------------------------------------------------------------------------
# Files


def find_files(path):
    """Return the files of a path: itself, with .gz or .zst added, or the sorted matches of a pattern; [] if none."""
    for name in (path, path + ".gz", path + ".zst"):
        if Path(name).is_file():
            return [name]
    return sorted(name for name in glob.glob(path, recursive=True) if Path(name).is_file())


def lines(path):
    """Yield (location, text) for each line of a file, without its line break. location is "PATH, line N", from 1."""
    numbered = read_lines(Path(path), 0, END)
    try:
        for number, line in progress(numbered, Path(path).name, unit=" lines", unit_scale=True, delay=3, leave=False):
            yield f"{path}, line {number}", decode(line, number)
    except (DataError, OSError, EOFError, zlib.error) as error:  # a damaged .gz or .zst raises OSError too
        raise DataError(f"{path}: {error}") from None


# ----------------------------------------------------------------------------
# Tables


def rows(path, columns, counts):
    """Yield (location, {column: value}) for each row of a table. location is "PATH, line N", for error messages.

    path: .tsv or .txt (tabs, no quoting, as in GLUE), .csv (usual quoting) or .jsonl (one object per line). In JSON, a
        column of the first row that a later row lacks is None there.
    columns: {name: type} of the required columns. If all names are numbers and the first line of a .tsv, .txt or .csv
        does not have them, the file has no header, and they count columns from 0.
    counts: gets the number of lines with quoted fields in .tsv or .txt, and of lines with more or fewer fields than the
        first. The latter are left out if they are at most 1 % (GLUE's files have a few).
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
                    f"{path}, line 1: no column {column!r}; the columns are {[*row]}, separated by commas in .csv, by "
                    "tabs in .tsv or .txt; name yours with --columns and --label (sc, tc), or number them from 0 if "
                    f"there is no header; {OTHER_FORM}"
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
    if columns.keys() <= {*numbers} and not columns.keys() <= {*header}:  # no header: the first line is a row
        table = chain([(first, fields)], table)
        header = numbers
    if len({*header}) < len(header):
        raise DataError(f"{first}: two columns have the same name: {header}")
    n_right = 0
    wrong = []
    quoted = 'lines with a field such as "a ""b""", whose quotes stay: only .csv has quoting, and only one layer'
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
    """Yield (location, fields) for each row of a file with .csv quoting. location is the row's first line."""
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
    """Convert the tags of a sentence, in IOB1, BIO or BIOES or breaking their scheme, to BIO.

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
    """Yield the Texts of a table: `task.columns` filled into `task.form`, labeled by the column `task.label`."""
    columns = task.columns or ("text",)
    label = task.label.strip() or "label"
    form = task.form or "\n".join(["{}"] * len(columns))
    for location, row in rows(path, dict.fromkeys(columns, str) | {label: object}, counts):
        yield Text(fill(form, map(row.get, columns)), read_label(row[label], task, location))


def fill(form, texts):
    """Replace each {} in a form by a text. Other braces stay."""
    before, *after = form.split("{}")
    return before + "".join(map("".join, zip(texts, after)))


def read_label(value, task, location):
    """Return the label in a table's cell: the name of a class or, in regression, a number."""
    if value is None or not str(value).strip():
        expected = 'a label: add it or delete the row; to predict it, see docs/finetuning.md, "Predictions"'
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

    Tabs separate the columns; in a line without tabs, spaces do. A blank line or a -DOCSTART- line ends a sentence.
    `task.columns` and `task.label` number the columns of words and tags, from 0, or from the end if negative.
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
    """Yield the Questions of a table. Answers without text are dropped; `find_answer` says where the others start."""
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
    """Return where the answer begins in the context: at `start`, else at the nearest place that has it, else -1.

    A wrong `start` may count bytes of UTF-8 or units of UTF-16 instead of characters. So the distance to a place is
    measured in characters and in bytes (units are in between), and the smaller one counts.
    """
    if start >= 0 and context.startswith(answer, start):
        return start
    places = {}  # {place: its distance from start}
    for match in re.finditer(f"(?={re.escape(answer)})", context):
        n = match.start()
        places[n] = min(abs(n - start), abs(len(context[:n].encode(errors="replace")) - start))
    counts["answers moved to the nearest place that has them" if places else "answers not in their context"] += 1
    return min(places, key=places.get, default=-1)


def to_train_on(questions, counts):
    """Return the Questions to train on, without answers that are not in the context.

    A question that had only such answers is left out. Testing compares texts, so it keeps all.
    """
    kept = []
    for question in questions:
        inside = [answer for answer in question.answers if answer[1] >= 0]
        counts["questions with several answers, of which the first is learned"] += len({*inside}) > 1
        if inside or not question.answers:
            kept.append(question._replace(answers=inside))
        else:
            counts["questions left out, because no answer is in the context"] += 1
    return kept


def read_pairs(path, task, counts):
    """Yield the Pairs of a table with the columns query and document."""
    for _, row in rows(path, {"query": str, "document": str}, counts):
        yield Pair(row["query"], row["document"])


# ----------------------------------------------------------------------------
# Retrieval sets, read as BEIR's loader reads them. Of several lines with the same ids, the last one counts.


def read_texts_by_id(path, counts, form="", wanted=None):
    """Read documents or queries in BEIR's format, from a file or all that match a pattern. Returns {id: text}.

    A line is an object with "_id", "text" and maybe "title". form: joins a document's title and text; BEIR's is
    "{} {}". It is empty for queries: their titles are ignored, and a query that is not judged may have no text. wanted:
    ids to keep, so that a few documents of a large corpus take little memory; None keeps all.
    """
    texts = {}
    for file in find_files(path):
        for location, row in rows(file, {"_id": str | int, "text": str if form else object}, counts):
            id, title, text = str(row["_id"]), row.get("title"), row["text"]
            if form and title and not isinstance(title, str):
                raise DataError(f"{location}: title is {title!r:.200}, expected text or null")
            if wanted is None or id in wanted:
                counts["lines left out, because a later one has the same _id"] += id in texts
                texts[id] = (fill(form, (title, text)) if title else text).strip() if form else text
    if not texts:
        raise DataError(f"{path}: has no texts, or none that are judged")
    return texts


def read_qrels(path, split, counts):
    """Read judgments in BEIR's format, from a .tsv or all that match a pattern: {query id: {document id: grade}}.

    The first line is a header, whatever it says. The others begin with a query's id, a document's id and a grade.
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
                counts[f"{split}: judgments left out, because BEIR takes the first line for a header"] += 1
                continue
            grades = qrels.setdefault(query, {})
            counts[f"{split}: judgments left out, because a later line has the same ids"] += document in grades
            grades[document] = grade
    return qrels


READERS = {"sc": read_texts, "tc": read_sentences, "qa": read_questions, "ir": read_pairs}  # by family
