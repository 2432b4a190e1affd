"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

splits.py reads the Dataset of a Task. `python -m eval.tasks` lists the data sets.
"""

from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import configurator
from errors import DataError, nearest
from eval.tasks.embedded import MAKERS
from eval.tasks.examples import SPLITS
from eval.tasks.readers import DELIMITED, file_format, find_files

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
EMBEDDED = [*MAKERS]  # made from Python itself, in embedded.py

REGRESSION = ("pearson", "spearman")
METRICS = {  # by family: groups of metrics, the field's main one first; those of a task are of one group
    "sc": (("accuracy", "f1", "matthews"), REGRESSION),
    "tc": (("entity_f1", "sentence_macro_f1"),),
    "qa": (("f1", "exact_match", "token_set_f1"),),
    "ir": (("ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"),),
}
SETTINGS = {"sc": "columns label form positive", "tc": "columns label", "qa": "", "ir": "columns corpus"}  # by family
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric positive".split(), "")


# ----------------------------------------------------------------------------
# The data sets


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `read` needs."""

    family: str
    name: str = ""  # "" = given by family and paths
    source: str = ""  # where to get the files, and under which terms
    paths: dict = field(default_factory=dict)  # {split, corpus of ir, mismatched: path in the folder of all tasks}
    sets: dict = field(default_factory=dict)  # ir, if several are searched: {name: paths of each}
    columns: tuple = ()  # sc: of the texts; tc: of the words; ir: of query and document. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other; ir: see read_texts_by_id
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    outside: tuple = ()  # tc: types of entities that are read as O
    metric: str = ""  # the main metric, or several, of which the score is the mean: "f1". "" = the family's default
    positive: str = ""  # sc, two labels: the one whose F1 is the metric. "" = the second, see label_names
    training: bool = True  # False: only the test set is read, for a model with these labels; see for_testing
    labels: tuple = ()
    hub: dict = field(default_factory=dict)  # the fields that differ when it is read from the Hugging Face hub

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


def files(prefix, train, test, validation=""):
    """Return the paths of a Task."""
    names = {"train": train, "validation": validation, "test": test}
    return {split: prefix + name for split, name in names.items() if name}


def on_hub(name, test="test", validation="", **fields):
    """Return the fields of a Task whose splits are downloaded from the hub."""
    return {"paths": files(f"hf:{name}:", "train", test, validation), **fields}


def glue(name, archive, prefix, columns, hub_columns=(), tests=(("test", ""),), **fields):
    """Return the Task of a data set of GLUE. Its test set is the official validation set.

    prefix: of the paths. hub_columns: `columns` as the hub calls them, if otherwise. tests: (split, what the names of
    its files end in) of each test set.
    """

    def paths(prefix, test, end):
        return {"train": f"{prefix}train{end}"} | {split: f"{prefix}{test}{half}{end}" for split, half in tests}

    source = f"https://dl.fbaipublicfiles.com/glue/data/{archive}"
    hub = {"paths": paths(f"hf:nyu-mll/glue:{name}:", "validation", ""), "label": "label"}
    hub["columns"] = hub_columns or columns
    return Task("sc", name, source, paths(prefix, "dev", ".tsv"), columns=columns, hub=hub, **fields)


def squad(name, folder, version):
    """Return the Task of a version of SQuAD. Its test set is the official validation set."""
    paths = files(f"{folder}/", f"train-{version}.json", f"dev-{version}.json")
    source = "https://rajpurkar.github.io/SQuAD-explorer/dataset/ (CC BY-SA 4.0)"
    return Task("qa", name, source, paths, hub=on_hub(f"rajpurkar/{name}", "validation"))


SENTENCES, ENTAILMENT = "Sentence 1: {}\nSentence 2: {}", "Premise: {}\nHypothesis: {}"
PAIR = ("sentence1", "sentence2")
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
CONLL_2012 = "english/annotations/[!p]*/**/*gold_conll"  # all genres but pt, the New Testament: it has no names marked

DECLARED = (
    glue(  # its files have no header
        "cola",
        "CoLA.zip (research use)",
        "glue/CoLA/*",
        ("3",),
        ("sentence",),
        label="1",
        names=("unacceptable", "acceptable"),
        metric="matthews",
    ),
    glue("sst2", "SST-2.zip (research use)", "sst2/", ("sentence",), names=("negative", "positive")),
    glue(
        "mrpc",
        "mrpc_dev_ids.tsv, by which GLUE's download_glue_data.py divides msr_paraphrase_train.txt of "
        "https://www.microsoft.com/download/details.aspx?id=52398 (Microsoft Research's license)",
        "glue/MRPC/",
        ("#1 String", "#2 String"),
        PAIR,
        label="Quality",
        form=SENTENCES,
        names=("not_equivalent", "equivalent"),
        metric="accuracy,f1",
    ),
    glue(
        "stsb",
        "STS-B.zip (terms in its LICENSE.txt)",
        "glue/STS-B/",
        PAIR,
        label="score",
        form=SENTENCES,
        metric="pearson,spearman",
    ),
    glue(
        "qqp",
        "QQP-clean.zip (Quora's terms: not commercial)",
        "qqp/",
        ("question1", "question2"),
        label="is_duplicate",
        form="Question 1: {}\nQuestion 2: {}",
        names=("not_duplicate", "duplicate"),
        metric="accuracy,f1",
    ),
    glue(
        "mnli",
        "MNLI.zip (OANC's and other open licenses)",
        "mnli/",
        PAIR,
        ("premise", "hypothesis"),
        (("test", "_matched"), ("mismatched", "_mismatched")),
        label="gold_label",
        form=ENTAILMENT,
    ),
    glue(
        "qnli", "QNLIv2.zip (CC BY-SA 4.0)", "glue/QNLI/", ("question", "sentence"), form="Question: {}\nSentence: {}"
    ),
    glue("rte", "RTE.zip (research use)", "glue/RTE/", PAIR, form=ENTAILMENT),
    Task(  # four columns: word, part of speech, chunk, entity in IOB1 (BIO in newer copies)
        "tc",
        "conll2003",
        "https://www.clips.uantwerpen.be/conll2003/ner/, which makes them from the Reuters corpus "
        "(https://trec.nist.gov/data/reuters/reuters.html: for research, on registration)",
        files("conll2003/", "eng.train", "eng.testb", "eng.testa"),
        hub=on_hub("hgissbkh/conll2003-en", validation="validation", columns=("words",), label="ner"),
    ),
    Task(
        "tc",
        "ontonotes",
        "CoNLL-2012's v4 data (https://conll.cemantix.org/2012/data.html), into which its script skeleton2conll.sh "
        "fills the words of OntoNotes 5 (https://catalog.ldc.upenn.edu/LDC2013T19: free, on registration)",
        files("ontonotes/", f"train/**/{CONLL_2012}", f"test/**/{CONLL_2012}", f"development/**/{CONLL_2012}"),
        columns=("3",),
        label="10",
    ),
    Task(  # English EWT: number, word, tag, ...; the data set's own loader reads OTH and "B-O" as O
        "tc",
        "uner",
        "https://github.com/UniversalNER/UNER_English-EWT (CC BY-SA 4.0)",
        files("uner/", "en_ewt-ud-train.iob2", "en_ewt-ud-test.iob2", "en_ewt-ud-dev.iob2"),
        columns=("1",),
        label="2",
        outside=("OTH", "O"),
        hub=on_hub("hgissbkh/uner_en", validation="validation", columns=("tokens",), label="ner_tags"),
    ),
    Task(
        "tc",
        "wnut17",
        "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)",
        files("wnut17/", "wnut17train.conll", "emerging.test.annotated", "emerging.dev.conll"),
    ),
    squad("squad", "squad_v1.1", "v1.1"),
    squad("squad_v2", "squad_v2", "v2.0"),
    Task(
        "qa",
        "record",
        "https://sheng-z.github.io/ReCoRD-explorer/ (terms on that page)",
        files("record/", "train.json", "dev.json"),
    ),
    Task(  # the test judgments of MS MARCO are those of TREC DL 2019: 43 queries, grades 0 to 3
        "ir",
        "msmarco",
        f"{BEIR}nq.zip as nq_beir, {BEIR}msmarco.zip as msmarco_beir, and mldr-v1.0-en of "
        "https://huggingface.co/datasets/Shitao/MLDR as mldr_en (NQ CC BY-SA 3.0, MS MARCO not commercial, MLDR MIT)",
        dict(train="msmarco_beir"),
        form="{}. {}",  # as in the paper; only NQ's documents have titles
        sets={
            "nq": dict(corpus="nq_beir"),
            "msmarco": dict(corpus="msmarco_beir", validation="msmarco_beir/qrels/dev.tsv"),
            "mldr": dict(corpus="mldr_en", validation="mldr_en/dev.jsonl", test="mldr_en/test.jsonl"),
        },
    ),
    Task(
        "ir",
        "scifact",
        f"{BEIR}scifact.zip as scifact_beir (claims CC BY 4.0, abstracts ODC-By 1.0)",
        dict(train="scifact_beir", corpus="scifact_beir"),
    ),
)
TASKS = {task.name: task for task in DECLARED}


# ----------------------------------------------------------------------------
# Files


def in_folder(task, folder):
    """Return the task with its paths joined to the folder of all tasks."""

    def join(paths):
        return {name: str(Path(folder, path)) for name, path in paths.items()}

    return replace(task, paths=join(task.paths), sets={name: join(paths) for name, paths in task.sets.items()})


def needed_files(task):
    """Return the files that must exist. A setting such as "--train" stands for a file that you must name."""
    if task.name in EMBEDDED:
        return []
    settings, found = ("train", "test"), [*task.paths.values()]
    if task.family == "ir":
        settings, train = () if task.sets else ("corpus", "train"), task.paths.get("train", "")
        found = [train] if train and not is_beir(train) else []
        for _, _, folder, judgments in judgment_files(task):
            found += [f"{folder}/corpus.jsonl", judgments]
            found += [f"{folder}/queries.jsonl"] if file_format(judgments) == "tsv" else []
    settings = [name for name in settings if name not in task.paths and (task.training or name != "train")]
    return [*(f"--{name}" for name in settings), *dict.fromkeys(found)]


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path for path in needed_files(task) if not find_files(path)]
    absent = [f"{path} (is a folder; expected a file)" if Path(path).is_dir() else path for path in absent]
    lines = ["missing:", *absent]
    lines += [f"Get them from {task.source}"] if task.source else []
    lines += ["Or pip install datasets, to have them downloaded."] if task.hub else []
    return "\n  ".join(lines) if absent else ""


def qrels(folder, split):
    """Return the path of a split's judgments in a folder in the BEIR layout."""
    return f"{folder}/qrels/{'dev' if split == 'validation' else split}.tsv"


def is_beir(train):
    """Return whether retrieval is trained on the judgments of a BEIR folder, and not on a file of pairs."""
    return Path(train).is_dir() or file_format(train) not in ("hub", "json", "jsonl", *DELIMITED)


def judgment_files(task):
    """Return [(name of the set, split, folder of its corpus, file of judgments)] of a task of ir."""
    found = []
    for name, paths in (task.sets or {"": task.paths}).items():
        corpus = paths.get("corpus")
        for split in ("validation", "test") if corpus else ():
            path = paths.get(split) or qrels(corpus, split)
            if split in paths or split == "test" or find_files(path):
                found.append((name, split, corpus, path))
    if "train" in task.paths and is_beir(train := task.paths["train"]):
        found.append(("", "train", train, qrels(train, "train")))
    return found


# ----------------------------------------------------------------------------
# From a name, a task file or settings to a Task


def find_task(task="", folder="data/tasks", **fields):
    """Return the Task of a name, a task file or a family, with `fields` (see FIELDS) in place of its own."""
    if task.endswith(".py"):
        found = read_task_file(task)
    elif task in TASKS:
        found = in_folder(TASKS[task], folder)
        there = Path(found.paths["train"]).parent.exists() or (fields.get("train") and fields.get("test"))
        if found.hub and not there and find_spec("datasets"):
            found = replace(found, **found.hub)
    elif task in EMBEDDED:
        found = Task(task[-2:], name=task)
    elif task:
        names = [*TASKS, *EMBEDDED]
        hint = f"{nearest(task, names)} There are {', '.join(names)}; a task file ends in .py"
        raise DataError(f"task={task}: no such task.{hint}")
    else:
        found = Task(fields.get("family", ""))
    return customize(found, fields)


def read_task_file(path):
    """Return the Task of a task file: settings as in FIELDS, with paths relative to its folder."""
    fields, problems = configurator.parse([path], FIELDS)
    name, folder = Path(path).stem, Path(path).parent
    if name in (*TASKS, *EMBEDDED):
        problems.append(f"{path}: there is a task {name} already: rename the file")
    if problems:
        raise DataError("; ".join(problems))
    for key in (*SPLITS, "corpus"):
        if fields[key] and not fields[key].startswith("hf:"):
            fields[key] = str(folder / fields[key])
    return customize(Task(fields["family"], name=name), fields)


def customize(task, fields):
    """Return the task with the fields that are not empty in place of its own. Raises DataError: one does not fit."""
    given = {name: value for name, value in fields.items() if value}
    if task.family not in METRICS:
        raise DataError(f"family={task.family!r}: must be one of {', '.join(METRICS)}, or give a task")
    if given.pop("family", task.family) != task.family:
        raise DataError(f"family={fields['family']}: but {task.title} is of the family {task.family}")
    allowed = {*SPLITS, *SETTINGS[task.family].split(), "metric"}
    if task.sets:  # each has judgments of its own
        allowed -= {"corpus", "validation", "test"}
    if task.name in EMBEDDED:
        allowed = set()
    if unused := [name for name in given if name not in allowed]:
        takes = f"only {', '.join(sorted(allowed))}" if allowed else "none"
        raise DataError(f"{', '.join(unused)}: {task.title} takes {takes} of your own")
    # One spelling of a folder, because train and corpus are compared.
    paths = {name: str(Path(given.pop(name))) for name in (*SPLITS, "corpus") if name in given}
    if "corpus" in paths:
        paths = {"train": paths["corpus"]} | task.paths | paths
    if task.family == "ir":
        for split in ("validation", "test"):
            if split in paths and Path(paths[split]).is_dir():
                paths[split] = qrels(paths[split], split)
        if "train" in paths and is_beir(paths["train"]) and not task.sets:
            paths = {"corpus": paths["train"]} | task.paths | paths
    if "columns" in given:
        given["columns"] = tuple(given["columns"].split(","))
    if "form" in given:
        given["form"] = given["form"].replace(r"\n", "\n")  # as a shell passes it on
    own = {name: path for name, path in task.paths.items() if name != "mismatched" or "test" not in paths}
    task = replace(task, paths=own | paths, **given)
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    return task


def for_testing(task, labels, fields):
    """Return the task as one that only tests a model with these labels, with `fields` in place of its own.

    A test set or a corpus in `fields` is a new one. Otherwise, the queries of retrieval that were held out of the test
    set in training, to validate on them, stay out of it.
    """
    is_new = bool(fields.get("test") or fields.get("corpus"))
    if is_new:
        task = replace(task, name="", source="", sets={}, hub={})
    task = customize(task, fields)
    paths, corpus = dict(task.paths), task.paths.get("corpus")
    if task.family != "ir":
        paths = {name: path for name, path in paths.items() if name in ("test", "mismatched")}
    elif is_new and corpus:
        test = paths["test"] if fields.get("test") else qrels(corpus, "test")
        paths = dict(corpus=corpus, validation=test, test=test)  # nothing is held out
    elif paths.get("train") != corpus:
        paths.pop("train", None)
    return replace(task, paths=paths, training=False, labels=tuple(labels))
