"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

The names are in datasets.ini; `python -m eval.tasks` lists them. splits.py reads the examples of a Task.
"""

import configparser
from dataclasses import dataclass, field, replace
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
SETTINGS = {"sc": "columns label form", "tc": "columns label", "qa": "", "ir": "corpus"}  # by family
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric".split(), "")
PATHS = (*SPLITS, "corpus")
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
JUDGMENTS = {"train": "qrels/train.tsv", "validation": "qrels/dev.tsv", "test": "qrels/test.tsv"}  # in a BEIR folder


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # "" = given by family and paths
    paths: dict = field(default_factory=dict)  # {"train", "validation", "test" or "corpus": path}
    columns: tuple = ()  # sc: of the texts; tc: of the words. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other; ir: see read_texts_by_id
    metric: str = ""  # the main metric, or several, of which the score is the mean: "f1". "" = the family's default
    outside: tuple = ()  # tc: types of entities that are read as O
    source: str = ""  # where to get the files, and under which terms
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


class Searched(NamedTuple):
    """A row of the table of a retrieval task: queries, the corpus that they search, and who judges what they find."""

    set: str  # the name of the set, "" if there is only one, and for training
    split: str
    corpus: str  # these three are files
    queries: str
    judgments: str
    held_out: float = 0.0  # the fraction of the judged queries that this row takes away from other rows of this file


def retrieval_table(task):
    """Return the Searched of a task of ir, all of whose paths are given. Training on a table of pairs has no row."""
    rows = []
    train = task.paths.get("train", "")
    if is_folder(train):
        rows.append(searched("", "train", train, ""))
    for name, paths in (task.sets or {"": task.paths}).items():
        corpus, validation = paths["corpus"], paths.get("validation", "")
        held_out = float(paths.get("held_out", 0))
        if not validation and not find_files(f"{corpus}/{JUDGMENTS['validation']}"):
            validation, held_out = f"{corpus}/{JUDGMENTS['train']}", VALIDATION_FRACTION
        rows.append(searched(name, "validation", corpus, validation)._replace(held_out=held_out))
        rows.append(searched(name, "test", corpus, paths.get("test", "")))
    return rows


def searched(name, split, corpus, given):
    """Return the row of a split. given: judgments of this corpus, a folder with its own corpus, or ""."""
    if is_folder(given):
        corpus, given = given, ""
    judgments = given or f"{corpus}/{JUDGMENTS[split]}"
    return Searched(name, split, f"{corpus}/corpus.jsonl", f"{corpus}/queries.jsonl", judgments)


def is_folder(path):
    """Return whether a path of ir is a folder in the BEIR layout, and not a table of pairs or judgments."""
    return bool(path) and file_format(path) not in ("json", *TABLES)


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing.

    A setting such as "--train" stands for a file that the user must name.
    """
    if task.family != "ir":
        settings, files = ["train", "test"], task.paths.values()
    else:
        settings, files = [] if task.sets else ["corpus", "train"], needed_for_retrieval(task)
    absent = [f"--{name}" for name in settings if name not in task.paths]
    for path in dict.fromkeys(files):
        if not find_files(path):
            absent.append(path + why_needed(task, path))
    if not absent:
        return ""
    source = f"Get them from {task.source}".splitlines() if task.source else []
    return "\n  ".join(["missing:", *absent, *source])


def needed_for_retrieval(task):
    """Yield the files that a task of ir needs; none if a path has to be named first."""
    if "train" not in task.paths or not (task.sets or "corpus" in task.paths):
        return
    if not is_folder(task.paths["train"]):
        yield task.paths["train"]
    for row in retrieval_table(task):
        yield from (row.corpus, row.judgments, row.queries)


def why_needed(task, path):
    """Return what is to be said about a missing file, for the end of its line."""
    if Path(path).is_dir():
        return " (is a folder; expected a file)"
    corpus = task.paths.get("corpus")
    if corpus and path == f"{corpus}/{JUDGMENTS['train']}":
        return f" (to validate on, as there is no {JUDGMENTS['validation']} either; or give --validation=JUDGMENTS.tsv)"
    return ""


# ----------------------------------------------------------------------------
# From a name, a task file or settings to a Task


def parsed(fields):
    """Return fields of a Task, all text, as it has them. Commas divide lists; a line break may be written as \\n."""
    fields = dict(fields)
    for name in ("columns", "names", "outside"):
        if name in fields:
            fields[name] = tuple(fields[name].split(","))
    if "form" in fields:
        fields["form"] = fields["form"].replace(r"\n", "\n")
    return fields


def read_table(path):
    """Return {name: Task} of datasets.ini."""
    table = configparser.ConfigParser(interpolation=None, delimiters="=")
    table.read_string(path.read_text(encoding="utf-8"))
    tasks = {}
    for section in table.sections():
        fields = dict(table[section])
        name, _, part = section.partition("/")
        if part:
            tasks[name].sets[part] = fields
            continue
        paths = {key: fields.pop(key) for key in PATHS if key in fields}
        tasks[name] = Task(name=name, paths=paths, **parsed(fields))
    return tasks


TASKS = read_table(Path(__file__).with_name("datasets.ini"))


def find_task(task="", folder="data/tasks", **fields):
    """Return the Task of a name, a task file or a family, with `fields` (see FIELDS) in place of its own."""
    if task.endswith(".py"):
        found = in_folder(read_task_file(task), Path(task).parent)
    elif task in TASKS:
        found = in_folder(TASKS[task], ROOT if task.startswith("embedded-") else folder)
    elif task:
        hint = f"{nearest(task, TASKS)} There are {', '.join(TASKS)}; a task file ends in .py"
        raise DataError(f"task={task}: no such task.{hint}")
    else:
        found = Task(fields.pop("family", ""))
    return customize(found, fields)


def in_folder(task, folder):
    """Return the task with its paths joined to a folder."""

    def join(fields):
        return {name: str(Path(folder, x)) if name in PATHS else x for name, x in fields.items()}

    sets = {name: join(fields) for name, fields in task.sets.items()}
    return replace(task, paths=join(task.paths), sets=sets)


def read_task_file(path):
    """Return the Task of a task file: settings as in FIELDS, with paths relative to its folder."""
    fields, problems = configurator.parse([path], FIELDS)
    name = Path(path).stem
    if name in TASKS:
        problems.append(f"{path}: there is a task {name} already: rename the file")
    if problems:
        raise DataError("; ".join(problems))
    return customize(Task(fields.pop("family"), name), fields)


def customize(task, fields):
    """Return the task with the fields that are not empty in place of its own. Raises DataError: one does not fit."""
    given = {name: value for name, value in fields.items() if value}
    if task.family not in METRICS:
        raise DataError(f"family={task.family!r}: must be one of {', '.join(METRICS)}, or give a task")
    allowed = {*SPLITS, *SETTINGS[task.family].split(), "metric"}
    if task.sets:  # each has judgments of its own
        allowed -= {"corpus", "validation", "test"}
    if unused := [f"{name}={value}" for name, value in given.items() if name not in allowed]:
        takes = ", ".join(sorted(allowed))
        raise DataError(f"{', '.join(unused)}: {task.title} ({task.family}) takes only {takes} of your own")
    paths = dict(task.paths)
    for name in PATHS:
        if name in given:
            paths[name] = str(Path(given.pop(name)))  # one spelling of a folder
    if task.family == "ir" and not task.sets:  # one folder is enough: it is both
        if "corpus" in paths:
            paths.setdefault("train", paths["corpus"])
        elif is_folder(paths.get("train", "")):
            paths["corpus"] = paths["train"]
    task = replace(task, paths=paths, **parsed(given))
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    return task
