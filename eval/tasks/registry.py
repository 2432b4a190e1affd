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
PATHS = (*SPLITS, "corpus")
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
JUDGMENTS = {"train": "qrels/train.tsv", "validation": "qrels/dev.tsv", "test": "qrels/test.tsv"}  # in a BEIR folder
TO_VALIDATE = f" (to validate on, as there is no {JUDGMENTS['validation']} either; or give --validation=JUDGMENTS.tsv)"


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # "" = given by family and paths
    train: str = ""  # these four are paths
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


class Searched(NamedTuple):
    """A row of the table of a retrieval task: queries, the corpus that they search, and who judges what they find."""

    set: str  # the name of the set, "" if there is only one, and for training
    split: str
    corpus: str  # these three are files; of a table of pairs there is only the last one
    queries: str
    judgments: str
    held_out: float = 0.0  # the fraction of the judged queries that this row takes away from other rows of this file


def retrieval_table(task):
    """Return the Searched of a task of ir, all of whose paths are given.

    Zero-shot, there is no row to train on, and none to validate on that would take queries away from the test set.
    """
    rows = [Searched("", "train", "", "", task.train)]
    if is_folder(task.train):
        rows = [searched("", "train", task.train)]
    for name, paths in (task.sets or {"": vars(task)}).items():
        corpus, validation = paths["corpus"], paths.get("validation")
        held_out = float(paths.get("held_out", 0))
        if not validation and not find_files(f"{corpus}/{JUDGMENTS['validation']}"):
            validation, held_out = f"{corpus}/{JUDGMENTS['train']}", VALIDATION_FRACTION
        test = searched(name, "test", corpus, paths.get("test"))
        validated = searched(name, "validation", corpus, validation, held_out)
        lacks = validated.judgments == test.judgments or not find_files(validated.judgments)
        rows += [test] if task.zero_shot and held_out and lacks else [validated, test]
    return rows[task.zero_shot :]


def searched(name, split, folder, given="", held_out=0.0):
    """Return the row of a split. given: judgments of the folder's corpus, a folder with its own corpus, or ""."""
    if is_folder(given):
        folder, given = given, ""
    judgments = given or f"{folder}/{JUDGMENTS[split]}"
    return Searched(name, split, f"{folder}/corpus.jsonl", f"{folder}/queries.jsonl", judgments, held_out)


def is_folder(path):
    """Return whether a path of ir is a folder in the BEIR layout, and not a table of pairs or judgments."""
    return bool(path) and file_format(path) not in ("json", *TABLES)


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing.

    A setting such as "--train" stands for a file that the user must name.
    """
    needed = ["train", "test"]
    files = dict.fromkeys((task.train, task.validation, task.test), "")  # {file: what to say where it is missing}
    if task.family == "ir":
        needed, files = [] if task.sets else ["corpus"], {}
        for row in retrieval_table(task) if task.corpus or task.sets else ():
            files |= {row.corpus: "", row.judgments: TO_VALIDATE * (row.held_out > 0), row.queries: ""}
    absent = [f"--{name}" for name in needed if not getattr(task, name)]
    absent += [path + hint for path, hint in files.items() if path and not find_files(path)]
    if not absent:
        return ""
    source = f"Get them from {task.source}".splitlines() if task.source else []
    return "\n  ".join(["missing:", *absent, *source])


# ----------------------------------------------------------------------------
# From a name, a task file or settings to a Task. Until the last step all its fields are text, by name.


def read_table(path):
    """Return {name: fields} of datasets.ini."""
    table = configparser.ConfigParser(interpolation=None, delimiters="=")
    table.read_string(path.read_text(encoding="utf-8"))
    tasks = {}
    for section in table.sections():
        name, _, part = section.partition("/")
        if part:
            tasks[name]["sets"][part] = dict(table[section])
        else:
            tasks[name] = {"name": name, "sets": {}, **table[section]}
    return tasks


TASKS = read_table(Path(__file__).with_name("datasets.ini"))


def read_task_file(path):
    """Return the fields that a task file sets, as in FIELDS, and its name."""
    fields, problems = configurator.parse([path], FIELDS)
    name = Path(path).stem
    if name in TASKS:
        problems.append(f"{path}: there is a task {name} already: rename the file")
    if problems:
        raise DataError("; ".join(problems))
    return in_folder(fields, Path(path).parent) | {"name": name}


def in_folder(fields, folder):
    """Return the fields that are not empty, with the paths, in one spelling, joined to a folder."""
    given = {name: value for name, value in fields.items() if value}
    return given | {name: str(Path(folder, given[name])) for name in PATHS if name in given}


def find_task(task="", folder="data/tasks", zero_shot=False, **fields):
    """Return the Task of a name, a task file or a family, with `fields` (see FIELDS) in place of its own.

    Paths in a task file are relative to its folder. Raises DataError: there is no such task, or a field does not fit.
    """
    own = {"family": fields.pop("family", "")} if not task else {}
    given = in_folder(fields, "")
    if task.endswith(".py"):
        own = read_task_file(task)
        given = {name: value for name, value in own.items() if name not in ("family", "name")} | given
    elif task in TASKS:
        folder = ROOT if task.startswith("embedded-") else folder
        own = in_folder(TASKS[task], folder)
        own["sets"] = {name: in_folder(paths, folder) for name, paths in TASKS[task]["sets"].items()}
    elif task:
        hint = f"{nearest(task, TASKS)} There are {', '.join(TASKS)}; a task file ends in .py"
        raise DataError(f"task={task}: no such task.{hint}")
    found = made(own | given | {"family": own.get("family", ""), "zero_shot": zero_shot})
    check(found, given)
    return found


def made(fields):
    """Return the Task of some fields. Commas divide lists; a line break may be written as \\n."""
    for name in ("columns", "names", "outside"):
        if name in fields:
            fields[name] = tuple(fields[name].split(","))
    fields["form"] = fields.get("form", "").replace(r"\n", "\n")
    if fields["family"] == "ir" and not fields.get("sets"):  # one folder is enough: it is both
        if is_folder(fields.get("train")):
            fields.setdefault("corpus", fields["train"])
        fields.setdefault("train", fields.get("corpus", ""))
    return Task(**fields)


def check(task, given):
    """Raise DataError if the fields that a user has given do not fit the task."""
    if task.family not in METRICS:
        raise DataError(f"family={task.family!r}: must be one of {', '.join(METRICS)}, or give a task")
    if task.zero_shot and task.family != "ir":
        raise DataError(
            f"max_steps=0: {task.title} ({task.family}) has a head, which must be trained: only ir has none"
        )
    allowed = {*SPLITS, *SETTINGS[task.family].split(), "metric"}
    if task.sets:  # each has judgments of its own
        allowed -= {"corpus", "validation", "test"}
    if unused := [f"{name}={value}" for name, value in given.items() if name not in allowed]:
        takes = ", ".join(sorted(allowed))
        raise DataError(f"{', '.join(unused)}: {task.title} ({task.family}) takes only {takes} of your own")
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
