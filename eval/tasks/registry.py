"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

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
METRICS = {  # by family: groups of metrics, the field's main one first; those of a task are of one group
    "sc": (("accuracy", "f1", "matthews"), REGRESSION),
    "tc": (("entity_f1", "sentence_macro_f1"),),
    "qa": (("f1", "exact_match", "token_set_f1"),),
    "ir": (("ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"),),
}
SETTINGS = {"sc": "columns label form", "tc": "columns label", "qa": "", "ir": "corpus form"}  # by family
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric".split(), "")
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
TABLE = configparser.ConfigParser(interpolation=None, delimiters="=")
TABLE.read_string(Path(__file__).with_name("datasets.ini").read_text(encoding="utf-8"))
TASKS = {name: fields for name, fields in TABLE.items() if fields and "/" not in name}


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # that of the family, if it is given by family and paths
    train: str = ""  # these four are paths; ir: of pairs to train on, "" where judgments say what to train on
    validation: str = ""
    test: str = ""
    corpus: str = ""  # ir: a folder in BEIR's layout
    judged: tuple = ()  # ir: Judged of this folder and of others
    columns: tuple = ()  # sc: of the texts; tc: of the words. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other; ir: see read_texts_by_id
    metric: str = ""  # the main metric, or several, of which the score is the mean: "f1". "" = the family's default
    outside: tuple = ()  # tc: types of entities that are read as O
    source: str = ""  # where to get the files, and under which terms

    @property
    def metrics(self):
        return self.metric.split(",") if self.metric else [METRICS[self.family][0][0]]

    @property
    def regression(self):
        """Whether the labels of sc are numbers."""
        return self.metrics[0] in REGRESSION


class Judged(NamedTuple):
    """A file of judgments, FOLDER/qrels/NAME.tsv, of a folder in BEIR's layout, and what they are for."""

    split: str
    judgments: str
    set: str = ""  # the name of the set, if a task searches several
    held_out: float = 0.0  # the fraction of the judged queries that this row takes away from other rows of this file

    @property
    def folder(self):
        """The folder in BEIR's layout. Raises DataError if the path says none."""
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
    """Return the Task of a name, of a task file or, if `task` is empty, of `fields`, which are those of FIELDS.

    folder: of the named tasks' files. Paths in a task file are relative to its own folder. Raises DataError: there is
    no such task, or a field does not fit.
    """
    given = {name: value for name, value in fields.items() if value}
    if task and given:
        raise DataError(f"{', '.join(given)}: task={task} says this itself: give either a task or your own data")
    if task in TASKS:
        return made(task, TASKS[task], ROOT if task.startswith("embedded-") else folder, zero_shot)
    name = Path(task).stem
    folder = Path(task).parent
    if task.endswith(".py"):
        given, problems = configurator.parse([task], FIELDS)
        if name in TASKS:
            problems.append(f"{task}: there is a task {name} already: rename the file")
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
    """Return the Task of some fields, all of them text. Commas divide lists; a line break may be written as \\n.

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
        raise DataError(f"max_steps=0: {name or family} has a head, which must be trained: only ir has none")
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
    """Return the fields that are not empty, with the paths, in one spelling, joined to a folder."""
    given = {name: value for name, value in fields.items() if value}
    return given | {name: str(Path(folder, given[name])) for name in (*SPLITS, "corpus") if name in given}


def retrieval_fields(fields, sets, zero_shot):
    """Return the fields of a Task of ir: the paths in its folders become a table of Judged.

    sets: {name: fields} of those that the task searches; {} = the fields are those of one set. One folder is enough: it
    is the corpus, and what to train on. Zero-shot, nothing is trained on, and nothing is held out to validate on.
    """
    train = fields.get("train") or fields.get("corpus", "")
    is_folder = format_of(Path(train)) not in (".json", *TABLES)  # and not a table of pairs
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
