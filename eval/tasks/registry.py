"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    find_task("sst2"), find_task("topics.py")  # return a Task: where the files are, and what they hold
    find_task(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

splits.py reads the Dataset of a Task. `python -m eval.tasks` lists the data sets.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

import configurator
from errors import DataError, nearest
from eval.tasks.examples import SPLITS
from eval.tasks.readers import DELIMITED, file_format, find_files

REGRESSION = ("pearson", "spearman")
METRICS = {  # by family: groups of metrics, the field's main one first; those of a task are of one group
    "sc": (("accuracy", "f1", "matthews"), REGRESSION),
    "tc": (("entity_f1", "sentence_macro_f1"),),
    "qa": (("f1", "exact_match", "token_set_f1"),),
    "ir": (("ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"),),
}
SETTINGS = {"sc": "columns label form", "tc": "columns label", "qa": "", "ir": "columns corpus"}  # by family
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric".split(), "")


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `splits.read` needs."""

    family: str
    name: str = ""  # "" = given by family and paths
    paths: dict = field(default_factory=dict)  # {"train", "validation", "test" or "corpus": path}
    columns: tuple = ()  # sc: of the texts; tc: of the words; ir: of query and document. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other; ir: see read_texts_by_id
    metric: str = ""  # the main metric, or several, of which the score is the mean: "f1". "" = the family's default
    outside: tuple = ()  # tc: types of entities that are read as O
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
# The data sets, with their paths in the folder of all tasks

EMBEDDED = f"{Path(__file__).parents[2]}/data/embedded"  # its README.md says what these tasks are

PAIR = ("sentence1", "sentence2")
SENTENCES, ENTAILMENT = "Sentence 1: {}\nSentence 2: {}", "Premise: {}\nHypothesis: {}"
CONLL = "english/annotations/[!p]*/**/*gold_conll"  # all genres but pt, the New Testament: it has no names marked

# The test sets of GLUE and SQuAD are the official validation sets; of MNLI's two it is the matched one. CoLA's files
# have no header. CoNLL-2003's columns are word, part of speech, chunk, and entity in IOB1 (BIO in newer copies). UNER's
# are number, word and tag, and its own loader reads OTH and "B-O" as O. MS MARCO is tested on TREC DL 2019: 43 queries,
# grades 0 to 3.
# fmt: off
TASKS = {task.name: task for task in (
    Task("sc", "cola", dict(train="glue/CoLA/*train.tsv", test="glue/CoLA/*dev.tsv"), ("3",), "1",
         ("unacceptable", "acceptable"), metric="matthews"),
    Task("sc", "sst2", dict(train="sst2/train.tsv", test="sst2/dev.tsv"), ("sentence",), "", ("negative", "positive")),
    Task("sc", "mrpc", dict(train="glue/MRPC/train.tsv", test="glue/MRPC/dev.tsv"), ("#1 String", "#2 String"),
         "Quality", ("not_equivalent", "equivalent"), SENTENCES, "accuracy,f1"),
    Task("sc", "stsb", dict(train="glue/STS-B/train.tsv", test="glue/STS-B/dev.tsv"), PAIR,
         "score", (), SENTENCES, "pearson,spearman"),
    Task("sc", "qqp", dict(train="qqp/train.tsv", test="qqp/dev.tsv"), ("question1", "question2"),
         "is_duplicate", ("not_duplicate", "duplicate"), "Question 1: {}\nQuestion 2: {}", "accuracy,f1"),
    Task("sc", "mnli", dict(train="mnli/train.tsv", test="mnli/dev_matched.tsv"), PAIR, "gold_label", (), ENTAILMENT),
    Task("sc", "qnli", dict(train="glue/QNLI/train.tsv", test="glue/QNLI/dev.tsv"), ("question", "sentence"),
         form="Question: {}\nSentence: {}"),
    Task("sc", "rte", dict(train="glue/RTE/train.tsv", test="glue/RTE/dev.tsv"), PAIR, form=ENTAILMENT),
    Task("tc", "conll2003", dict(train="conll2003/eng.train", validation="conll2003/eng.testa",
                                 test="conll2003/eng.testb")),
    Task("tc", "ontonotes", dict(train=f"ontonotes/train/**/{CONLL}", validation=f"ontonotes/development/**/{CONLL}",
                                 test=f"ontonotes/test/**/{CONLL}"), ("3",), "10"),
    Task("tc", "uner", dict(train="uner/en_ewt-ud-train.iob2", validation="uner/en_ewt-ud-dev.iob2",
                            test="uner/en_ewt-ud-test.iob2"), ("1",), "2", outside=("OTH", "O")),
    Task("tc", "wnut17", dict(train="wnut17/wnut17train.conll", validation="wnut17/emerging.dev.conll",
                              test="wnut17/emerging.test.annotated")),
    Task("qa", "squad", dict(train="squad_v1.1/train-v1.1.json", test="squad_v1.1/dev-v1.1.json")),
    Task("qa", "squad_v2", dict(train="squad_v2/train-v2.0.json", test="squad_v2/dev-v2.0.json")),
    Task("qa", "record", dict(train="record/train.json", test="record/dev.json")),
    Task("ir", "msmarco", dict(train="msmarco_beir"), form="{}. {}", sets={  # as in the paper; NQ alone has titles
        "nq": dict(corpus="nq_beir"),
        "msmarco": dict(corpus="msmarco_beir", validation="msmarco_beir/qrels/dev.tsv"),
        "mldr": dict(corpus="mldr_en", validation="mldr_en/dev.jsonl", test="mldr_en/test.jsonl")}),
    Task("ir", "scifact", dict(train="scifact_beir", corpus="scifact_beir")),
    Task("sc", "embedded-sc", {split: f"{EMBEDDED}/sc/{split}.jsonl.gz" for split in SPLITS}),
    Task("tc", "embedded-tc", {split: f"{EMBEDDED}/tc/{split}.conll.gz" for split in SPLITS}),
    Task("qa", "embedded-qa", {split: f"{EMBEDDED}/qa/{split}.jsonl.gz" for split in SPLITS}),
    Task("ir", "embedded-ir", dict(train=f"{EMBEDDED}/ir/train.jsonl.gz", validation=f"{EMBEDDED}/ir/dev",
                                   corpus=f"{EMBEDDED}/ir/test")),
)}

ZIPS = "https://dl.fbaipublicfiles.com/glue/data/"
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/ (CC BY-SA 4.0)"
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
SOURCES = {  # where to get the files, and under which terms
    "cola": ZIPS + "CoLA.zip (research use)",
    "sst2": ZIPS + "SST-2.zip (research use)",
    "mrpc": ZIPS + "mrpc_dev_ids.tsv, by which GLUE's download_glue_data.py divides msr_paraphrase_train.txt of "
            "https://www.microsoft.com/download/details.aspx?id=52398 (Microsoft Research's license)",
    "stsb": ZIPS + "STS-B.zip (terms in its LICENSE.txt)",
    "qqp": ZIPS + "QQP-clean.zip (Quora's terms: not commercial)",
    "mnli": ZIPS + "MNLI.zip (OANC's and other open licenses)",
    "qnli": ZIPS + "QNLIv2.zip (CC BY-SA 4.0)",
    "rte": ZIPS + "RTE.zip (research use)",
    "conll2003": "https://www.clips.uantwerpen.be/conll2003/ner/, which makes them from the Reuters corpus "
                 "(https://trec.nist.gov/data/reuters/reuters.html: for research, on registration)",
    "ontonotes": "CoNLL-2012's v4 data (https://conll.cemantix.org/2012/data.html), into which its script "
                 "skeleton2conll.sh fills the words of OntoNotes 5 (https://catalog.ldc.upenn.edu/LDC2013T19: free, on "
                 "registration)",
    "uner": "https://github.com/UniversalNER/UNER_English-EWT (CC BY-SA 4.0)",
    "wnut17": "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)",
    "squad": SQUAD,
    "squad_v2": SQUAD,
    "record": "https://sheng-z.github.io/ReCoRD-explorer/ (terms on that page)",
    "msmarco": BEIR + "nq.zip as nq_beir, " + BEIR + "msmarco.zip as msmarco_beir, and mldr-v1.0-en of "
               "https://huggingface.co/datasets/Shitao/MLDR as mldr_en (NQ CC BY-SA 3.0, MS MARCO not commercial, "
               "MLDR MIT)",
    "scifact": BEIR + "scifact.zip as scifact_beir (claims CC BY 4.0, abstracts ODC-By 1.0)",
}
# fmt: on


# ----------------------------------------------------------------------------
# Files


def in_folder(task, folder):
    """Return the task with its paths joined to the folder of all tasks. Those of the embedded tasks are absolute."""

    def join(paths):
        return {name: str(Path(folder, path)) for name, path in paths.items()}

    return replace(task, paths=join(task.paths), sets={name: join(paths) for name, paths in task.sets.items()})


def needed_files(task):
    """Return the files that must exist. A setting such as "--train" stands for a file that you must name."""
    if task.family == "ir":
        settings, train = () if task.sets else ("corpus", "train"), task.paths.get("train", "")
        found = [train] if train and not is_beir(train) else []
        for _, _, folder, judgments in judgment_files(task):
            found += [f"{folder}/corpus.jsonl", judgments]
            found += [f"{folder}/queries.jsonl"] if file_format(judgments) == "tsv" else []
    else:
        settings, found = ("train", "test"), task.paths.values()
    return [*(f"--{name}" for name in settings if name not in task.paths), *dict.fromkeys(found)]


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path for path in needed_files(task) if not find_files(path)]
    absent = [f"{path} (is a folder; expected a file)" if Path(path).is_dir() else path for path in absent]
    lines = ["missing:", *absent]
    lines += [f"Get them from {SOURCES[task.name]}"] if task.name in SOURCES else []
    return "\n  ".join(lines) if absent else ""


def is_beir(path):
    """Return whether a path of ir is a folder in the BEIR layout, and not a file of pairs or judgments."""
    return Path(path).is_dir() or file_format(path) not in ("json", "jsonl", *DELIMITED)


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


def find_task(task="", folder="data/tasks", **fields):
    """Return the Task of a name, a task file or a family, with `fields` (see FIELDS) in place of its own."""
    if task.endswith(".py"):
        found = read_task_file(task)
    elif task in TASKS:
        found = in_folder(TASKS[task], folder)
    elif task:
        hint = f"{nearest(task, TASKS)} There are {', '.join(TASKS)}; a task file ends in .py"
        raise DataError(f"task={task}: no such task.{hint}")
    else:
        found = Task(fields.get("family", ""))
    return customize(found, fields)


def read_task_file(path):
    """Return the Task of a task file: settings as in FIELDS, with paths relative to its folder."""
    fields, problems = configurator.parse([path], FIELDS)
    name, folder = Path(path).stem, Path(path).parent
    if name in TASKS:
        problems.append(f"{path}: there is a task {name} already: rename the file")
    if problems:
        raise DataError("; ".join(problems))
    for key in (*SPLITS, "corpus"):
        if fields[key]:
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
    if unused := [name for name in given if name not in allowed]:
        takes = ", ".join(sorted(allowed))
        raise DataError(f"{', '.join(unused)}: {task.title} takes only {takes} of your own")
    # A given path replaces the task's own. Path gives a folder one spelling, because train and corpus are compared.
    paths = task.paths | {name: str(Path(given.pop(name))) for name in (*SPLITS, "corpus") if name in given}
    if task.family == "ir" and not task.sets:  # one folder is enough: it is both
        if "train" not in paths and "corpus" in paths:
            paths["train"] = paths["corpus"]
        if "corpus" not in paths and "train" in paths and is_beir(paths["train"]):
            paths["corpus"] = paths["train"]
    if "columns" in given:
        given["columns"] = tuple(given["columns"].split(","))
    if "form" in given:
        given["form"] = given["form"].replace(r"\n", "\n")  # as a shell passes it on
    task = replace(task, paths=paths, **given)
    groups = METRICS[task.family]
    if not any({*task.metrics} <= {*group} for group in groups):
        choices = ", or of ".join(", ".join(group) for group in groups)
        raise DataError(f"metric={task.metric}: must be one or more of {choices}")
    return task
