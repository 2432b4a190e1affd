"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    python -m eval.tasks                       # list them, and whether their files are there
    python -m eval.tasks sst2 topics.py        # show its counts and its first examples; a task file is one of your own
    load("sst2"), load("topics.py")            # return a Dataset
    load(family="sc", train="mine.csv", test="test.csv", columns="title,body", label="topic")

The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation set, because the labels
of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text, sentence, context or query
is on one side of a random split only.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import configurator
from errors import DataError, nearest
from eval.tasks import embedded, readers
from eval.tasks.examples import Dataset, Mismatched, Pair, Retrieval, listed
from eval.tasks.metrics import answerable, in_set
from eval.tasks.readers import DELIMITED, file_format, find_files

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 42  # of every random split, so that all runs of a task share its splits
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")
EMBEDDED = [f"embedded-{family}" for family in ("sc", "tc", "qa", "ir")]  # made from Python itself, in embedded.py

REGRESSION = ("pearson", "spearman")
METRICS = {  # by family: groups of metrics, the field's main one first; those of a task are of one group
    "sc": (("accuracy", "f1", "matthews"), REGRESSION),
    "tc": (("entity_f1", "sentence_macro_f1"),),
    "qa": (("f1", "exact_match", "token_set_f1"),),
    "ir": (("ndcg@10", "mrr@10", "recall@100", "ndcg@10_judged"),),
}
PAPER = {"sc": "accuracy", "tc": "sentence_macro_f1", "qa": "token_set_f1", "ir": "ndcg@10_judged"}  # its metrics
# By family: the settings that its readers use; the key that a random split keeps on one side.
SETTINGS = {"sc": "columns label form positive", "tc": "columns label", "qa": "", "ir": "columns corpus"}
FIELDS = dict.fromkeys("family train validation test corpus columns label form metric positive".split(), "")
KEY = {"sc": "text", "tc": "sentence", "qa": "context", "ir": "query"}
READERS = dict(sc=readers.read_texts, tc=readers.read_sentences, qa=readers.read_questions, ir=readers.read_pairs)


# ----------------------------------------------------------------------------
# The data sets


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold: all that `read` needs."""

    family: str
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
    name: str = ""  # "" = given by family and paths
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


def hub(name, test="test", validation="", **fields):
    """Return the fields of a Task whose splits are downloaded from the hub."""
    return {"paths": files(f"hf:{name}:", "train", test, validation), **fields}


def glue(name, prefix, archive, columns, tests=(("test", ""),), on_hub=(), **fields):
    """Return the Task of a data set of GLUE. Its test set is the official validation set.

    prefix: of the paths. tests: (split, what the names of its files end in) of each test set. on_hub: the columns there,
    if they have other names.
    """

    def paths(prefix, test, end):
        return {"train": f"{prefix}train{end}"} | {split: f"{prefix}{test}{half}{end}" for split, half in tests}

    there = paths(f"hf:nyu-mll/glue:{name}:", "validation", "")
    fields |= {"columns": columns, "hub": {"paths": there, "columns": on_hub or columns, "label": "label"}}
    return Task("sc", f"https://dl.fbaipublicfiles.com/glue/data/{archive}", paths(prefix, "dev", ".tsv"), **fields)


SENTENCES, ENTAILMENT = "Sentence 1: {}\nSentence 2: {}", "Premise: {}\nHypothesis: {}"
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/ (CC BY-SA 4.0)"
CONLL_2012 = "english/annotations/[!p]*/**/*gold_conll"  # all genres but pt, the New Testament: it has no names marked

TASKS = {
    "cola": glue(  # its files have no header
        "cola",
        "glue/CoLA/*",
        "CoLA.zip (research use)",
        ("3",),
        label="1",
        names=("unacceptable", "acceptable"),
        metric="matthews",
        on_hub=("sentence",),
    ),
    "sst2": glue("sst2", "sst2/", "SST-2.zip (research use)", ("sentence",), names=("negative", "positive")),
    "mrpc": glue(
        "mrpc",
        "glue/MRPC/",
        "mrpc_dev_ids.tsv, by which GLUE's download_glue_data.py divides msr_paraphrase_train.txt of "
        "https://www.microsoft.com/download/details.aspx?id=52398 (Microsoft Research's license)",
        ("#1 String", "#2 String"),
        label="Quality",
        form=SENTENCES,
        names=("not_equivalent", "equivalent"),
        metric="accuracy,f1",
        on_hub=("sentence1", "sentence2"),
    ),
    "stsb": glue(
        "stsb",
        "glue/STS-B/",
        "STS-B.zip (terms in its LICENSE.txt)",
        ("sentence1", "sentence2"),
        label="score",
        form=SENTENCES,
        metric="pearson,spearman",
    ),
    "qqp": glue(
        "qqp",
        "qqp/",
        "QQP-clean.zip (Quora's terms: not commercial)",
        ("question1", "question2"),
        label="is_duplicate",
        form="Question 1: {}\nQuestion 2: {}",
        names=("not_duplicate", "duplicate"),
        metric="accuracy,f1",
    ),
    "mnli": glue(
        "mnli",
        "mnli/",
        "MNLI.zip (OANC's and other open licenses)",
        ("sentence1", "sentence2"),
        (("test", "_matched"), ("mismatched", "_mismatched")),
        label="gold_label",
        form=ENTAILMENT,
        on_hub=("premise", "hypothesis"),
    ),
    "qnli": glue(
        "qnli", "glue/QNLI/", "QNLIv2.zip (CC BY-SA 4.0)", ("question", "sentence"), form="Question: {}\nSentence: {}"
    ),
    "rte": glue("rte", "glue/RTE/", "RTE.zip (research use)", ("sentence1", "sentence2"), form=ENTAILMENT),
    "conll2003": Task(  # four columns: word, part of speech, chunk, entity in IOB1 (BIO in newer copies)
        "tc",
        "https://www.clips.uantwerpen.be/conll2003/ner/, which makes them from the Reuters corpus "
        "(https://trec.nist.gov/data/reuters/reuters.html: for research, on registration)",
        files("conll2003/", "eng.train", "eng.testb", "eng.testa"),
        hub=hub("hgissbkh/conll2003-en", validation="validation", columns=("words",), label="ner"),
    ),
    "ontonotes": Task(
        "tc",
        "CoNLL-2012's v4 data (https://conll.cemantix.org/2012/data.html), into which its script skeleton2conll.sh "
        "fills the words of OntoNotes 5 (https://catalog.ldc.upenn.edu/LDC2013T19: free, on registration)",
        files("ontonotes/", f"train/**/{CONLL_2012}", f"test/**/{CONLL_2012}", f"development/**/{CONLL_2012}"),
        columns=("3",),
        label="10",
    ),
    "uner": Task(  # English EWT: number, word, tag, ...; the data set's own loader reads OTH and "B-O" as O
        "tc",
        "https://github.com/UniversalNER/UNER_English-EWT (CC BY-SA 4.0)",
        files("uner/", "en_ewt-ud-train.iob2", "en_ewt-ud-test.iob2", "en_ewt-ud-dev.iob2"),
        columns=("1",),
        label="2",
        outside=("OTH", "O"),
        hub=hub("hgissbkh/uner_en", validation="validation", columns=("tokens",), label="ner_tags"),
    ),
    "wnut17": Task(
        "tc",
        "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)",
        files("wnut17/", "wnut17train.conll", "emerging.test.annotated", "emerging.dev.conll"),
    ),
    "squad": Task(
        "qa", SQUAD, files("squad_v1.1/", "train-v1.1.json", "dev-v1.1.json"), hub=hub("rajpurkar/squad", "validation")
    ),
    "squad_v2": Task(
        "qa",
        SQUAD,
        files("squad_v2/", "train-v2.0.json", "dev-v2.0.json"),
        hub=hub("rajpurkar/squad_v2", "validation"),
    ),
    "record": Task(
        "qa",
        "https://sheng-z.github.io/ReCoRD-explorer/ (terms on that page)",
        files("record/", "train.json", "dev.json"),
    ),
    "msmarco": Task(  # the test judgments of MS MARCO are those of TREC DL 2019: 43 queries, grades 0 to 3
        "ir",
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
    "scifact": Task(
        "ir",
        f"{BEIR}scifact.zip as scifact_beir (claims CC BY 4.0, abstracts ODC-By 1.0)",
        dict(train="scifact_beir", corpus="scifact_beir"),
    ),
}


def in_folder(task, folder):
    """Return the task with its paths joined to the folder of all tasks."""

    def join(paths):
        return {name: str(Path(folder, path)) for name, path in paths.items()}

    return replace(task, paths=join(task.paths), sets={name: join(paths) for name, paths in task.sets.items()})


def needed_files(task):
    """Return the files that must exist. A setting such as "--train" stands for a file that you must name."""
    if task.name in EMBEDDED:
        return []
    settings, found = ("train", "test"), list(task.paths.values())
    if task.family == "ir":
        settings = () if task.sets else ("corpus", "train")
        found = [path for name, path in task.paths.items() if name == "train" and not is_beir(path)]
        for _, _, folder, judgments in judgment_files(task):
            found += [f"{folder}/corpus.jsonl", judgments]
            found += [f"{folder}/queries.jsonl"] if file_format(judgments) == "tsv" else []
    settings = [name for name in settings if name not in task.paths and (task.training or name != "train")]
    return [*(f"--{name}" for name in settings), *dict.fromkeys(found)]


def missing(task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path for path in needed_files(task) if not find_files(path)]
    absent = [f"{path} (is a folder; expected a file)" if Path(path).is_dir() else path for path in absent]
    lines = [f"{task.title}: missing:", *absent]
    lines += [f"Get them from {task.source}"] if task.source else []
    lines += ["Or pip install datasets, to have them downloaded."] if task.hub else []
    return "\n  ".join(lines) if absent else ""


def is_beir(train):
    """Return whether retrieval is trained on the judgments of a BEIR folder, and not on a file of pairs."""
    return Path(train).is_dir() or file_format(train) not in ("hub", "json", "jsonl", *DELIMITED)


def judgment_files(task):
    """Return [(name of the set, split, folder of its corpus, file of judgments)] of a task of ir."""
    found = []
    for name, paths in (task.sets or {"": task.paths}).items():
        corpus = paths.get("corpus")
        for split, file in (("validation", "dev"), ("test", "test")) if corpus else ():
            path = paths.get(split) or f"{corpus}/qrels/{file}.tsv"
            if split in paths or split == "test" or find_files(path):
                found.append((name, split, corpus, path))
    if "train" in task.paths and is_beir(train := task.paths["train"]):
        found.append(("", "train", train, f"{train}/qrels/train.tsv"))
    return found


# ----------------------------------------------------------------------------
# Loading


def load(task="", folder="data/tasks", full_corpus=True, **fields):
    """Return the Dataset of a task. docs/finetuning.md says what the fields mean for each family."""
    return read(find_task(task, folder, **fields), full_corpus)


def find_task(task="", folder="data/tasks", **fields):
    """Return the Task of a name, a task file or a family, with `fields` (see FIELDS) in place of its own."""
    if task.endswith(".py"):
        found = read_task_file(task)
    elif task in TASKS:
        found = in_folder(replace(TASKS[task], name=task), folder)
        there = Path(found.paths["train"]).parent.exists() or (fields.get("train") and fields.get("test"))
        if found.hub and not there and find_spec("datasets"):
            found = replace(found, **found.hub)
    elif task in EMBEDDED:
        found = Task(task[-2:], name=task)
    elif task:
        names = [*TASKS, *EMBEDDED]
        why = f"no such task.{nearest(task, names)} There are {', '.join(names)}; a task file ends in .py"
        raise DataError(f"task={task}: {why}")
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
        for split, file in (("validation", "dev"), ("test", "test")):  # the judgments in a folder in the BEIR layout
            if split in paths and Path(paths[split]).is_dir():
                paths[split] += f"/qrels/{file}.tsv"
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
        test = paths["test"] if fields.get("test") else f"{corpus}/qrels/test.tsv"
        paths = dict(corpus=corpus, validation=test, test=test)  # nothing is held out
    elif paths.get("train") != corpus:
        paths.pop("train", None)
    return replace(task, paths=paths, training=False, labels=tuple(labels))


def read(task, full_corpus=True):
    """Return the Dataset of a Task.

    full_corpus: ir: False keeps only those documents of a corpus that the validation or test judgments name. That takes
        little memory and is all that the paper's metric needs. The field's metric is not defined on it, so
        main["field"] is empty.
    Raises DataError: before it reads any file, with everything that is missing and where to get it; later with file and
        line.
    """
    if absent := missing(task):
        raise DataError(absent)
    counts = Counter()
    if task.name in EMBEDDED:
        splits = embedded.make(task.name)
    elif task.family == "ir":
        splits = retrieval_splits(task, full_corpus, counts)
    else:
        splits = example_splits(task, counts)
    labels = label_names(task, splits, counts)
    count_known_keys(task.family, splits, counts)
    sets, paper = [*task.sets] or [""], task.metrics if task.regression else [PAPER[task.family]]
    halves = [name for name in task.paths if name == "mismatched"]
    main = {
        "field": [in_set(name, metric) for name in (*sets, *halves) for metric in task.metrics],
        "paper": [in_set(name, metric) for name in sets for metric in paper],
    }
    if task.family == "ir" and not full_corpus:
        main["field"] = []
    counts = {rule: count for rule, count in counts.items() if count}
    return Dataset(task.name or task.family, task.family, labels, **splits, counts=counts, main=main, task=task)


def label_names(task, splits, counts):
    """Return the labels seen in training: in the order of `task.names`, then "O", then alphabetically.

    The positive one is the last. Numbers have no names: []. Without training, they are those of the model.
    """
    if task.family not in ("sc", "tc"):
        return []
    found = {split: Counter(label for x in examples for label in x.labels) for split, examples in splits.items()}
    known = {*found["train"]} if task.training else {*task.labels}
    if task.training and len(known) < 2:
        why = f"all examples to train on are {min(known)!r}: there is nothing to learn"
        raise DataError(f"{task.paths['train']}: {why}. If others were held out to validate on, give --validation")
    if task.regression and not task.labels:
        return []
    for split in ("validation", "test"):
        unseen = sorted({*found[split]} - known)
        if unseen and task.family == "sc" and not task.training:
            why = f"the model does not know the labels {listed(unseen[:10])}; it knows {listed(task.labels) or 'none'}"
            raise DataError(f"{task.paths.get('test', task.title)}: {why}")
        counts[f"{split}: labels never seen in training"] = sum(found[split][label] for label in unseen)
    similar = defaultdict(set)
    for label in known.union(*found.values()):
        similar[label.strip().casefold()].add(label)
    for group in [sorted(group) for group in similar.values() if len(group) > 1]:
        uses = sum(labels[label] for labels in found.values() for label in group)
        names = ", ".join(map(repr, group))
        counts[f"uses of labels that differ only in case or in space around them ({names})"] = uses
    order = {name: i for i, name in enumerate((*task.names, "O"))}
    labels = sorted(known, key=lambda label: (label == task.positive, order.get(label, len(order)), label))
    labels = labels if task.training else list(task.labels)
    if (task.positive or "matthews" in task.metrics) and len(labels) != 2:
        raise DataError(f"positive and matthews are only for two labels, but there are {len(labels)}: {listed(labels)}")
    if task.positive and task.positive != labels[1]:
        choice = f"one of the two labels {listed(labels)}" if task.training else f"{labels[1]}, as in training"
        raise DataError(f"positive={task.positive}: choose {choice}")
    return labels


def count_known_keys(family, splits, counts):
    """Count the validation and test examples whose key is also in train."""
    known = {example.key for example in splits["train"]}
    for split in ("validation", "test"):
        examples = splits[split]
        if family == "ir":
            examples = [Pair(text, "") for part in examples.values() for text in part.queries.values()]
        twice = sum(example.key in known for example in examples)
        counts[f"{split}: examples whose {KEY[family]} is also in train"] = twice


# ----------------------------------------------------------------------------
# Splits


def hold_out(path, examples, keys, fraction=VALIDATION_FRACTION):
    """Split a file's examples in two lists; the second has `fraction` of the distinct keys, at random, at least one."""
    distinct = list(dict.fromkeys(keys))
    count = max(1, round(fraction * len(distinct)))
    if count >= len(distinct):
        few = f"too few different examples ({len(distinct)}) to hold some of them out"
        raise DataError(f"{path}: {few}: give --validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    held = {distinct[i] for i in np.random.RandomState(SPLIT_SEED).permutation(len(distinct))[:count]}
    pairs = list(zip(examples, keys, strict=True))
    return [example for example, key in pairs if key not in held], [example for example, key in pairs if key in held]


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
    splits = {split: read_all(path, task, split, counts) for split, path in task.paths.items()}
    if task.training and "validation" not in splits:
        train = splits["train"]
        splits["train"], splits["validation"] = hold_out(task.paths["train"], train, [example.key for example in train])
        counts[f"validation: held out of train, at random by {KEY[task.family]}"] = len(splits["validation"])
    splits["test"] += [Mismatched(*text) for text in splits.pop("mismatched", [])]
    return {"train": [], "validation": []} | splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules = Counter()
    examples = [example for file in find_files(path) for example in READERS[task.family](file, task, split, rules)]
    if not examples:
        why = "".join(f"; {rule}: {count}" for rule, count in rules.items() if count)
        raise DataError(f"{path}: there are no examples in it{why}")
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


def prefixed(name, text):
    return f"{name}: {text}" if name else text


def retrieval_splits(task, full_corpus, counts):
    """Return the splits of ir: Pairs to train on, and {name of the set: Retrieval} for validation and for test."""
    sets, train = task.sets or {"": task.paths}, task.paths.get("train")
    asked = {}  # {(set, split): {query id: text}}
    qrels = {}  # {(set, split): {query id: {document id: grade}}}
    named = defaultdict(set)  # {folder: ids of the documents that its judgments name}
    read_queries = cache(lambda folder: readers.read_texts_by_id(find_files(f"{folder}/queries.jsonl")[0]))
    judged_in = {}  # {(set, split): file of judgments}
    for name, split, folder, path in judgment_files(task):
        judged_in[name, split] = path
        judgments, texts = readers.read_qrels(find_files(path)[0])
        asked[name, split] = texts or read_queries(folder)
        if absent := sorted(judgments.keys() - asked[name, split].keys()):
            raise DataError(f"{path}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
        named[folder].update(*judgments.values())
        useful = qrels[name, split] = {query: judgments[query] for query in answerable(judgments)}
        if not useful:
            raise DataError(f"{path}: no query has a relevant document")
        left_out = len(judgments) - len(useful)
        counts[prefixed(name, f"{split}: queries left out, without a relevant document")] = left_out
    for name, paths in sets.items():
        if (name, "validation") not in qrels:
            source, fraction = (name, "test"), 0.5
            if paths["corpus"] == train:
                source, fraction = ("", "train"), VALIDATION_FRACTION
            texts = asked[name, "validation"] = asked[source]
            keys = [texts[query] for query in qrels[source]]
            kept, held = hold_out(judged_in[source], qrels[source].items(), keys, fraction)
            qrels[source], qrels[name, "validation"] = dict(kept), dict(held)
            counts[prefixed(name, f"validation: queries held out of {source[1]}, at random")] = len(held)

    searched = [paths["corpus"] for paths in sets.values() if full_corpus]
    documents = {folder: read_corpus(folder, named[folder], folder in searched, task.form) for folder in named}
    splits = {"train": training_pairs(task, asked, qrels, documents, counts), "validation": {}, "test": {}}
    for name, paths in sets.items():
        corpus = documents[paths["corpus"]]
        if not full_corpus:
            judged = [*qrels[name, "validation"].values(), *qrels[name, "test"].values()]
            corpus = {document: corpus[document] for grades in judged for document in grades}
        counts[prefixed(name, "corpus: empty documents")] = sum(not text.strip() for text in corpus.values())
        for split in ("validation", "test"):
            grades, texts = qrels[name, split], asked[name, split]
            splits[split][name] = Retrieval({query: texts[query] for query in grades}, corpus, grades)
    return splits


def training_pairs(task, asked, qrels, documents, counts):
    """Return the Pairs of a query and a relevant document to train on; see `retrieval_splits`."""
    train = task.paths.get("train")
    if not task.training:
        return []
    if not is_beir(train):
        return read_all(train, task, "train", counts)
    queries, judgments = asked["", "train"], qrels["", "train"].items()
    found = ((queries[query], document) for query, grades in judgments for document in grades if grades[document] > 0)
    return [Pair(query, documents[train][document]) for query, document in found]


def read_corpus(folder, named, full, form):
    """Return {document id: text} of all documents, or of the named ones only. form: see `readers.read_texts_by_id`."""
    path = find_files(f"{folder}/corpus.jsonl")[0]
    documents = readers.read_texts_by_id(path, None if full else named, form)
    if absent := sorted(named - documents.keys()):
        raise DataError(f"{path}: {len(absent)} judged documents are not in it, the first is {absent[0]!r}")
    return documents
