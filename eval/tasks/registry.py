"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

The names are in datasets.ini; `python -m eval.tasks` lists them. splits.py reads the examples of a Task.
"""

import configparser
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import configurator
from errors import DataError, nearest
from eval.tasks.readers import SPLITS, TABLES, file_format, find_files

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
OWN_QUERIES = "To validate on, give qrels/dev.tsv, or qrels/train.tsv, or validation=FOLDER/qrels/NAME.tsv"
TABLE = configparser.ConfigParser(interpolation=None, delimiters="=")
TABLE.read_string(Path(__file__).with_name("datasets.ini").read_text(encoding="utf-8"))
TASKS = {name: fields for name, fields in TABLE.items() if fields and "/" not in name}
SETS = {tuple(name.split("/")): paths for name, paths in TABLE.items() if "/" in name}  # {(task, set): its paths}


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # "" = given by family and paths
    train: str = ""  # these four are paths; ir: of a folder in the BEIR layout, or FOLDER/qrels/JUDGMENTS.tsv
    validation: str = ""
    test: str = ""
    corpus: str = ""  # ir
    columns: tuple = ()  # sc: of the texts; tc: of the words. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other; ir: see read_texts_by_id
    metric: str = ""  # the main metric, or several, of which the score is the mean: "f1". "" = the family's default
    outside: tuple = ()  # tc: types of entities that are read as O
    source: str = ""  # where to get the files, and under which terms
    zero_shot: bool = False  # ir: nothing is trained on, and nothing of a test set is held out
    sets: dict = field(default_factory=dict)  # ir, if several are searched: {name: its paths, and maybe "held_out"}

    @property
    def title(self):
        return self.name or f"family={self.family}"

    @property
    def metrics(self):
        return self.metric.split(",") if self.metric else [METRICS[self.family][0][0]]

    @property
    def regression(self):
        """Whether the labels of sc are numbers."""
        return self.metrics[0] in REGRESSION


# ----------------------------------------------------------------------------
# Files


class Judged(NamedTuple):
    """A row of the table of a retrieval task: a file of judgments, FOLDER/qrels/*.tsv, of a folder in BEIR's layout."""

    set: str  # the name of the set, "" if there is only one, and for training
    split: str
    judgments: str
    held_out: float = 0.0  # the fraction of the judged queries that this row takes away from other rows of this file

    def beside(self, name):
        """Return the path of corpus.jsonl or queries.jsonl in the folder. Raises DataError if there is no folder."""
        qrels = Path(self.judgments).parent
        if qrels.name != "qrels":
            raise DataError(f"{self.split}={self.judgments}: give judgments of a BEIR folder, FOLDER/qrels/NAME.tsv")
        return str(qrels.with_name(name))


def retrieval_table(task):
    """Return the Judged of a task of ir, all of whose folders are given. Pairs to train on are not in it.

    Zero-shot, there is no row to train on, and none to validate on that would take queries away from the test set.
    """
    rows = [Judged("", "train", f"{task.train}/qrels/train.tsv")] * (is_folder(task.train) and not task.zero_shot)
    for name, paths in (task.sets or {"": vars(task)}).items():
        qrels = f"{paths['corpus']}/qrels"
        test = Judged(name, "test", paths.get("test") or f"{qrels}/test.tsv")
        validation, held_out = paths.get("validation") or f"{qrels}/dev.tsv", float(paths.get("held_out", 0))
        if not paths.get("validation") and not find_files(validation):
            validation, held_out = f"{qrels}/train.tsv", VALIDATION_FRACTION
        if not (task.zero_shot and held_out and (validation == test.judgments or not find_files(validation))):
            rows.append(Judged(name, "validation", validation, held_out))
        rows.append(test)
    return rows


def is_folder(path):
    """Return whether a path of ir is a folder in BEIR's layout, and not a table of pairs."""
    return bool(path) and file_format(path) not in ("json", *TABLES)


def files_of(task):
    """Yield the files of a Task. Of a path that a user must give and has not, yield the setting, such as "--train"."""
    needed = {"ir": ["corpus"] * (not task.sets)}.get(task.family, ["train", "test"])
    if absent := [f"--{name}" for name in needed if not getattr(task, name)]:
        yield from absent
    elif task.family != "ir":
        yield from (task.train, task.validation or task.train, task.test)
    else:
        yield from [] if is_folder(task.train) or task.zero_shot else [task.train]
        for row in retrieval_table(task):
            yield from (row.beside("corpus.jsonl"), row.judgments, row.beside("queries.jsonl"))


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path for path in dict.fromkeys(files_of(task)) if not find_files(path)]
    if not absent:
        return ""
    source = task.source and f"Get them from {task.source}"
    if not source and task.corpus and any(row.held_out and row.judgments in absent for row in retrieval_table(task)):
        source = OWN_QUERIES
    return "\n  ".join(["missing:", *absent, *source.splitlines()])


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
    if task.endswith(".py"):
        given, problems = configurator.parse([task], FIELDS)
        file, folder, task = task, Path(task).parent, Path(task).stem
        if task in TASKS:
            problems.append(f"{file}: there is a task {task} already: rename the file")
        if problems:
            raise DataError("; ".join(problems))
    elif task in TASKS:
        return made(task, TASKS[task], ROOT if task.startswith("embedded-") else folder, zero_shot)
    elif task:
        raise DataError(
            f"task={task}: no such task.{nearest(task, TASKS)} There are {', '.join(TASKS)}; a task file ends in .py"
        )
    else:
        folder = ""
    found = made(task, given, folder, zero_shot)
    allowed = ["family", "metric", *SPLITS, *SETTINGS.get(found.family, "").split()]
    if unused := [f"{name}={value}" for name, value in given.items() if value and name not in allowed]:
        raise DataError(f"{', '.join(unused)}: {found.title} takes only {', '.join(allowed)}")
    return found


def made(name, given, folder, zero_shot):
    """Return the Task of some fields, all of them text. Commas divide lists; a line break may be written as \\n.

    Raises DataError if they do not fit the family.
    """
    fields = in_folder(given, folder)
    fields |= {key: tuple(fields[key].split(",")) for key in ("columns", "names", "outside") if key in fields}
    fields["form"] = fields.get("form", "").replace(r"\n", "\n")
    if fields.get("family") not in METRICS:
        raise DataError(f"family={fields.get('family', '')!r}: must be one of {', '.join(METRICS)}, or give a task")
    sets = {part: in_folder(paths, folder) for (task, part), paths in SETS.items() if task == name}
    if fields["family"] == "ir" and not sets:  # one folder is enough: it is both
        if is_folder(fields.get("train")):
            fields.setdefault("corpus", fields["train"])
        fields.setdefault("train", fields.get("corpus", ""))
    task = Task(**fields, name=name, sets=sets, zero_shot=zero_shot)
    if zero_shot and task.family != "ir":
        raise DataError(f"max_steps=0: {task.title} has a head, which must be trained: only ir has none")
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    return task


def in_folder(fields, folder):
    """Return the fields that are not empty, with the paths, in one spelling, joined to a folder."""
    given = {name: value for name, value in fields.items() if value}
    return given | {name: str(Path(folder, given[name])) for name in (*SPLITS, "corpus") if name in given}
