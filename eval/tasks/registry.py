"""The data sets to fine-tune on, by name, by a task file, or by the paths of your own files.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

The names are the sections of datasets.ini. splits.py reads the examples of a Task.
"""

import configparser
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import configurator
from data.sources import format_of
from errors import DataError
from eval.tasks.readers import SPLITS, TABLES, find_files

ROOT = Path(__file__).parents[2]
REGRESSION = ("pearson", "spearman")
METRICS = {  # by family: groups of metrics, the field's main one first; a task's metrics come from one group
    "sc": (("accuracy", "f1", "matthews"), REGRESSION),
    "tc": (("entity_f1", "sentence_macro_f1"),),
    "qa": (("f1", "exact_match", "token_set_f1"),),
    "ir": (("ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"),),
}
SETTINGS = {"sc": "columns label form", "tc": "columns label", "qa": "", "ir": "corpus form"}  # more fields, by family
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric".split(), "")
VALIDATION_FRACTION = 0.05  # of train's distinct keys, if a task has no validation set
TABLE = configparser.ConfigParser(interpolation=None, delimiters="=")
TABLE.read_string(Path(__file__).with_name("datasets.ini").read_text(encoding="utf-8"))
TASKS = {name: fields for name, fields in TABLE.items() if fields and "/" not in name}


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # the family's, if the task is given by paths
    train: str = ""  # these four are paths; ir: a table of pairs, or "" to train on judgments
    validation: str = ""
    test: str = ""
    corpus: str = ""  # ir: a folder in BEIR's layout
    judged: tuple = ()  # ir: a Judged for each file of judgments
    columns: tuple = ()  # sc: columns with the texts; tc: with the words. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    form: str = ""  # sc: a template for the columns, "" = one per line; ir: see read_texts_by_id
    metric: str = ""  # the main metric, such as "f1", or several, whose mean is the score. "" = the family's default
    outside: tuple = ()  # tc: entity types that are read as O
    source: str = ""  # where to get the files, and their license

    @property
    def metrics(self):
        return self.metric.split(",") if self.metric else [METRICS[self.family][0][0]]

    @property
    def regression(self):
        """Whether the labels of sc are numbers."""
        return self.metrics[0] in REGRESSION


class Judged(NamedTuple):
    """A file of judgments in a folder in BEIR's layout, FOLDER/qrels/NAME.tsv, and the split it is for."""

    split: str
    judgments: str
    set: str = ""  # the name of the set, if a task searches several
    held_out: float = 0.0  # the fraction of the queries that this row takes; other rows of the same file get the rest

    @property
    def folder(self):
        """The folder in BEIR's layout. Raises DataError if the path has another form."""
        qrels = Path(self.judgments).parent
        if qrels.name != "qrels":
            raise DataError(f"{self.split}={self.judgments}: give judgments of a BEIR folder, FOLDER/qrels/NAME.tsv")
        return qrels.parent


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    files = [task.train, task.validation, task.test]
    for row in task.judged:
        files += [f"{row.folder}/corpus.jsonl", row.judgments, f"{row.folder}/queries.jsonl"]
    absent = [path for path in dict.fromkeys(files) if path and not find_files(path)]
    if not absent:
        return ""
    if task.source:
        absent += f"Get them from {task.source}".splitlines()
    elif task.judged:
        absent.append(
            "A BEIR folder has corpus.jsonl, queries.jsonl and qrels/test.tsv. "
            "To validate on, give qrels/dev.tsv, or qrels/train.tsv, or validation=FOLDER/qrels/NAME.tsv"
        )
    return "\n  ".join(["missing:", *absent])


# ----------------------------------------------------------------------------
# From a name, a task file or settings to a Task


def find_task(task="", folder="data/tasks", zero_shot=False, **fields):
    """Return the Task with this name, of this task file or, if `task` is empty, with these `fields` (see FIELDS).

    folder: where the files of named tasks are. Paths in a task file are relative to the file. Raises DataError if there
    is no such task, or a field does not fit.
    """
    given = {name: value for name, value in fields.items() if value}
    if task and given:
        raise DataError(f"{', '.join(given)}: task={task} already sets this: give either a task or your own data")
    if task in TASKS:
        return made(task, TASKS[task], ROOT if task.startswith("embedded-") else folder, zero_shot)
    name = Path(task).stem
    folder = Path(task).parent
    if task.endswith(".py"):
        given, problems = configurator.parse([task], FIELDS)
        if name in TASKS:
            problems.append(f"{task}: there already is a task {name}: rename the file")
        if problems:
            raise DataError("; ".join(problems))
    elif task:
        raise DataError(f"task={task}: no such task. There are {', '.join(TASKS)}; a task file ends in .py")
    found = made(name, given, folder, zero_shot)
    allowed = ["family", "metric", *SPLITS, *SETTINGS[found.family].split()]
    if unused := [name for name, value in given.items() if value and name not in allowed]:
        raise DataError(f"{', '.join(unused)}: {found.name} takes only {', '.join(allowed)}")
    return found


def made(name, given, folder, zero_shot):
    """Return the Task with some fields, all of them text. Commas separate list items; \\n may stand for a line break.

    Raises DataError if they do not fit the family.
    """
    fields = {"family": "", "form": ""} | in_folder(given, folder)
    family = fields["family"]
    if family not in METRICS:
        raise DataError(f"family={family!r}: must be one of {', '.join(METRICS)}, or give a task")
    for key in {"columns", "names", "outside"} & fields.keys():
        fields[key] = tuple(map(str.strip, fields[key].split(",")))
    fields["form"] = fields["form"].replace(r"\n", "\n")
    if family == "ir":
        begin = f"{name}/"
        sets = {key.removeprefix(begin): in_folder(TABLE[key], folder) for key in TABLE if key.startswith(begin)}
        fields = retrieval_fields(fields, sets, zero_shot)
    elif zero_shot:
        raise DataError(f"max_steps=0: {name or family} has a head, which must be trained: only ir can do without")
    task = Task(**fields, name=name or family)
    if not any({*task.metrics} <= {*group} for group in METRICS[family]):
        choices = ", or of ".join(map(", ".join, METRICS[family]))
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    columns = ("title", "text") if family == "ir" else task.columns or ("text",)
    if task.form and task.form.count("{}") != len(columns):
        raise DataError(f"form={task.form!r}: needs one {{}} for each of the columns {', '.join(columns)}")
    if family != "ir" and not (task.train and task.test):
        raise DataError(f"family={family}: give --train and --test")
    return task


def in_folder(fields, folder):
    """Return the fields that are not empty, with paths normalized and joined to a folder."""
    given = {name: value for name, value in fields.items() if value}
    return given | {name: str(Path(folder, given[name])) for name in (*SPLITS, "corpus") if name in given}


def retrieval_fields(fields, sets, zero_shot):
    """Return the fields of an ir Task, with a table of Judged made from its paths.

    sets: {name: fields} of the sets that the task searches; {} = one set, described by `fields`. One folder is enough
    for the corpus and the training judgments. If zero_shot, nothing is trained on or held out for validation.
    """
    train = fields.get("train") or fields.get("corpus", "")
    is_folder = format_of(Path(train)) not in (".json", *TABLES)  # else a table of pairs
    if not (sets or "corpus" in fields or train and is_folder):
        raise DataError("family=ir: give --corpus")
    table = [Judged("train", f"{train}/qrels/train.tsv")] if is_folder else []
    for name, paths in (sets or {"": {"corpus": train} | fields}).items():
        qrels = f"{paths['corpus']}/qrels"
        validation = f"{qrels}/dev.tsv"
        held_out = float(paths.get("held_out", 0))
        if "validation" not in paths and not find_files(validation):
            validation = f"{qrels}/train.tsv"
            held_out = VALIDATION_FRACTION
        table += (
            Judged("validation", paths.get("validation", validation), name, held_out),
            Judged("test", paths.get("test", f"{qrels}/test.tsv"), name),
        )
    if zero_shot:
        table = [row for row in table if row.split != "train" and not row.held_out]
    return fields | {"judged": table, "train": "" if is_folder or zero_shot else train}
