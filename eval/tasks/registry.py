"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

The names are in datasets.ini; `python -m eval.tasks` lists them. splits.py reads the examples of a Task.
"""

import configparser
from dataclasses import dataclass, field, replace
from pathlib import Path

import configurator
from errors import DataError, nearest
from eval.tasks.readers import DELIMITED, SPLITS, file_format, find_files

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
    sets: dict = field(default_factory=dict)  # ir, if several are searched: {name: paths of each}

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


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing.

    A setting such as "--train" stands for a file that the user must name.
    """
    if task.family == "ir":
        settings, train = () if task.sets else ("corpus", "train"), task.paths.get("train", "")
        needed = [train] if train and not is_beir(train) else []
        for _, _, folder, judgments in judgment_files(task):
            needed += [f"{folder}/corpus.jsonl", judgments]
            needed += [f"{folder}/queries.jsonl"] if file_format(judgments) == "tsv" else []
    else:
        settings, needed = ("train", "test"), task.paths.values()
    absent = [f"--{name}" for name in settings if name not in task.paths]
    unfound = [path for path in dict.fromkeys(needed) if not find_files(path)]
    absent += [path + " (is a folder; expected a file)" * Path(path).is_dir() for path in unfound]
    source = f"Get them from {task.source}".splitlines() if task.source else []
    return "\n  ".join(["missing:", *absent, *source]) if absent else ""


def is_beir(path):
    """Return whether a path of ir is a folder in the BEIR layout, and not a file of pairs or judgments."""
    return file_format(path) not in ("json", "jsonl", *DELIMITED)


def judgment_files(task):
    """Return [(name of the set, split, folder of its corpus, file of judgments)] of a task of ir.

    A path of validation or test is a file of judgments on the corpus of its set, or a folder with its own corpus.
    """
    found = []
    for name, paths in (task.sets or {"": task.paths}).items():
        for split, file in (("validation", "qrels/dev.tsv"), ("test", "qrels/test.tsv")):
            given, corpus = paths.get(split, ""), paths.get("corpus", "")
            if given and not is_beir(given):
                found += [(name, split, corpus, given)] if corpus else []
            elif given or (corpus and (split == "test" or find_files(f"{corpus}/{file}"))):
                found.append((name, split, given or corpus, f"{given or corpus}/{file}"))
    if is_beir(train := task.paths.get("train", "a.jsonl")):
        found.append(("", "train", train, f"{train}/qrels/train.tsv"))
    return found


# ----------------------------------------------------------------------------
# From a name, a task file or settings to a Task


def parsed(fields):
    """Return fields of a Task, all text, as it has them: commas divide lists, and a line break may be written as \\n."""
    lists = {name: tuple(fields[name].split(",")) for name in ("columns", "names", "outside") if name in fields}
    return fields | lists | ({"form": fields["form"].replace(r"\n", "\n")} if "form" in fields else {})


def read_table(path):
    """Return {name: Task} of datasets.ini."""
    table, tasks = configparser.ConfigParser(interpolation=None, delimiters="="), {}
    table.read_string(path.read_text(encoding="utf-8"))
    for section in table.sections():
        fields, (name, _, part) = dict(table[section]), section.partition("/")
        paths = {key: fields.pop(key) for key in PATHS if key in fields}
        if part:
            tasks[name].sets[part] = paths
        else:
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

    def join(paths):
        return {name: str(Path(folder, path)) for name, path in paths.items()}

    return replace(task, paths=join(task.paths), sets={name: join(paths) for name, paths in task.sets.items()})


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
    # Path gives a folder one spelling, because train and corpus are compared.
    paths = task.paths | {name: str(Path(given.pop(name))) for name in PATHS if name in given}
    if task.family == "ir" and not task.sets:  # one folder is enough: it is both
        if "train" not in paths and "corpus" in paths:
            paths["train"] = paths["corpus"]
        if "corpus" not in paths and "train" in paths and is_beir(paths["train"]):
            paths["corpus"] = paths["train"]
    task = replace(task, paths=paths, **parsed(given))
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    return task
