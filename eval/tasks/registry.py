"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    python -m eval.tasks                       # list them, and whether their files are there
    python -m eval.tasks sst2                  # show its counts and its first examples
    load("sst2")                               # return a Dataset
    load(family="sc", train="mine.csv", test="test.csv", columns=("title", "body"), label="topic", form="{}: {}")

There are four families: sc, sequence classification; tc, token classification; qa, extractive question answering; ir,
information retrieval. The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation
set, because the labels of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text,
sentence, context or query is on one side of a random split only.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from configurator import nearest
from errors import DataError
from eval.tasks import embedded, readers
from eval.tasks.examples import Dataset, Pair, Retrieval
from eval.tasks.metrics import answerable
from eval.tasks.readers import file_format, find_files

SPLITS = ("train", "validation", "test")
SPLIT_SEED = 42  # of every random split, so that all runs of a task share its splits
VALIDATION_FRACTION = 0.05  # of train's distinct keys, where a task has no validation set
EMBEDDED = [f"embedded-{family}" for family in ("sc", "tc", "qa", "ir")]  # made from Python itself, in embedded.py

# By family: the field's main metric and the paper's; the settings that its readers use; the key that a random split
# keeps on one side.
MAIN = {
    "sc": ("accuracy", "accuracy"),
    "tc": ("entity_f1", "sentence_macro_f1"),
    "qa": ("f1", "token_set_f1"),
    "ir": ("ndcg@10", "ndcg@10_judged"),
}
SETTINGS = {"sc": ("columns", "label", "form"), "tc": ("columns", "label"), "qa": (), "ir": ("columns", "corpus")}
KEY = {"sc": "text", "tc": "sentence", "qa": "context", "ir": "query"}
READERS = {
    "sc": readers.read_texts,
    "tc": readers.read_sentences,
    "qa": readers.read_questions,
    "ir": readers.read_pairs,
}


# ----------------------------------------------------------------------------
# The data sets


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold."""

    family: str
    source: str = ""  # where to get the files, and under which terms
    paths: dict = field(default_factory=dict)  # {split, or corpus of ir: path in the folder of all tasks}; see load
    sets: dict = field(default_factory=dict)  # ir, if several are searched: {name: paths of each}
    columns: tuple = ()  # sc: of the texts; tc: of the words; ir: of query and document. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    outside: tuple = ()  # tc: types of entities that are read as O
    main: str = ""  # the field's main metric, where it is not the family's
    hub: dict = field(default_factory=dict)  # the fields that differ when it is read from the Hugging Face hub


def files(prefix, train, test, validation=""):
    """Return the paths of a Task."""
    names = {"train": train, "validation": validation, "test": test}
    return {split: prefix + name for split, name in names.items() if name}


def hub(name, test="test", validation="", **fields):
    """Return the fields of a Task whose splits are downloaded from the hub."""
    return {"paths": files(f"hf:{name}:", "train", test, validation), **fields}


GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/ (CC BY-SA 4.0)"
CONLL_2012 = "english/annotations/[!p]*/**/*gold_conll"  # all genres but pt, the New Testament: it has no names marked

TASKS = {
    "sst2": Task(
        "sc",
        f"{GLUE}SST-2.zip (research use)",
        files("sst2/", "train.tsv", "dev.tsv"),
        columns=("sentence",),
        names=("negative", "positive"),
        hub=hub("nyu-mll/glue:sst2", "validation"),
    ),
    "qqp": Task(
        "sc",
        f"{GLUE}QQP-clean.zip (Quora's terms: not commercial)",
        files("qqp/", "train.tsv", "dev.tsv"),
        columns=("question1", "question2"),
        label="is_duplicate",
        form="Question 1: {}\nQuestion 2: {}",
        names=("not_duplicate", "duplicate"),
        main="f1",
        hub=hub("nyu-mll/glue:qqp", "validation", label="label"),
    ),
    "mnli": Task(  # matched
        "sc",
        f"{GLUE}MNLI.zip (OANC's and other open licenses)",
        files("mnli/", "train.tsv", "dev_matched.tsv"),
        columns=("sentence1", "sentence2"),
        label="gold_label",
        form="Premise: {}\nHypothesis: {}",
        hub=hub("nyu-mll/glue:mnli", "validation_matched", columns=("premise", "hypothesis"), label="label"),
    ),
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
    settings, found = ("train", "test"), list(task.paths.values())
    if task.family == "ir":
        settings = () if task.sets else ("corpus", "train")
        found = [path for name, path in task.paths.items() if name == "train" and not is_beir(path)]
        for _, _, folder, judgments in judgment_files(task):
            found += [f"{folder}/corpus.jsonl", judgments]
            found += [f"{folder}/queries.jsonl"] if file_format(judgments) == "tsv" else []
    return [*(f"--{name}" for name in settings if name not in task.paths), *dict.fromkeys(found)]


def missing(name, task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path for path in needed_files(task) if not find_files(path)]
    lines = [f"task={name}: missing:" if name else f"family={task.family}: missing:", *absent]
    lines += [f"Get them from {task.source}"] if task.source else []
    lines += ["Or pip install datasets, to have them downloaded."] if task.hub else []
    return "\n  ".join(lines) if absent else ""


def is_beir(train):
    """Return whether retrieval is trained on the judgments of a BEIR folder, and not on a file of pairs."""
    return file_format(train) not in ("hub", "json", "jsonl", "tsv", "csv")


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


def load(task="", family="", folder="data/tasks", full_corpus=True, **fields):
    """Return a Dataset: one of TASKS or EMBEDDED by name, or your own by family and paths.

    fields: train, validation, test, corpus, columns, label, form; those that are not empty replace the task's own. A
        path may be a pattern such as part-*.jsonl, and files may be .gz. Without validation, 5 % of train's distinct
        texts, sentences, contexts or queries are held out at random.
        sc: .tsv (a header, no quoting), .csv or .jsonl. `columns` are the texts (default "text") and go into `form`
            (default: one below the other), `label` is the class (default "label"). With two classes, F1 is that of the
            second in alphabetical order.
        tc: words and tags in CoNLL columns. `columns` and `label` are the numbers of the word's and the tag's column,
            counted from 0 (default: first and last). Or .jsonl with lists: `columns` (default "tokens"), `label`.
        qa: SQuAD's .json, v1.1 or v2; or .jsonl with id, question, context, answers {"text": [], "answer_start": []}.
        ir: corpus is a folder with corpus.jsonl, and with queries.jsonl if the judgments are .tsv. train is a BEIR
            folder with qrels/train.tsv (default: corpus), a table of pairs (`columns`, default "query" and "document")
            or a SQuAD .json, read as questions and their contexts. validation and test are judgments: .tsv like BEIR's
            or .jsonl like MLDR's (default: qrels/dev.tsv, if there, and qrels/test.tsv of corpus). Without validation
            judgments, queries of train are held out if that is corpus too, else half of test's.
        A table may also be hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, if the datasets package is installed.
    full_corpus: ir: False keeps only those documents of a corpus that the validation or test judgments name. That takes
        little memory and is all that the paper's metric needs. The field's metric is not defined on it, so
        main["field"] is empty.

    Raises DataError: before it reads any file, with everything that is missing and where to get it; later with file and
        line.
    """
    given = {name: value for name, value in fields.items() if value}
    check_arguments(task, family, given)
    dataset = embedded.load(task) if task in EMBEDDED else read_dataset(task, family, folder, full_corpus, given)
    if dataset.family == "ir" and not full_corpus:
        dataset.main["field"] = []
    return dataset


def check_arguments(task, family, given):
    """Raise a DataError for arguments of `load` that do not fit together."""
    names = [*TASKS, *EMBEDDED]
    if task and task not in names:
        raise DataError(f"task={task}: no such task.{nearest(task, names)} There are {', '.join(names)}")
    of_task = TASKS[task].family if task in TASKS else task[-2:] or family
    if of_task not in MAIN:
        raise DataError(f"family={family!r}: give a task, or one of the families {', '.join(MAIN)}")
    if family not in ("", of_task):
        raise DataError(f"family={family}: but {task} is of the family {of_task}")
    allowed = {*SPLITS, *SETTINGS[of_task]} if task not in EMBEDDED else set()
    if task in TASKS:  # several sets have judgments of their own
        allowed -= {"corpus", "validation", "test"} if TASKS[task].sets else {"corpus"}
    if unused := [name for name in given if name not in allowed]:
        takes = f"only {', '.join(sorted(allowed))}" if allowed else "none"
        raise DataError(f"{', '.join(unused)}: {task or f'family={family}'} takes {takes} of your own")


def read_dataset(task, family, folder, full_corpus, given):
    """Return the Dataset of a task, or of a family, with the user's own paths and columns."""
    # One spelling of a folder, because train and corpus are compared.
    paths = {name: str(Path(given[name])) for name in (*SPLITS, "corpus") if name in given}
    columns = {name: value for name, value in given.items() if name not in paths}
    spec = in_folder(TASKS[task], folder) if task else Task(family)
    if "corpus" in paths:
        paths = {"train": paths["corpus"]} | paths
    own_folder = Path(spec.paths.get("train", "")).parent
    spec = replace(spec, paths=spec.paths | paths, **columns)
    absent = missing(task, spec)
    if absent and spec.hub and not own_folder.exists() and find_spec("datasets"):
        spec = replace(spec, **spec.hub | columns | {"paths": spec.hub["paths"] | paths})
    elif absent:
        raise DataError(absent)

    counts = Counter()
    splits = retrieval_splits(spec, full_corpus, counts) if spec.family == "ir" else example_splits(spec, counts)
    labels = label_names(spec, splits, counts)
    count_known_keys(spec.family, splits, counts)
    counts = {rule: count for rule, count in counts.items() if count}
    field, paper = MAIN[spec.family]
    prefixes = [f"{name}/" for name in spec.sets] or [""]
    main = {
        "field": [prefix + (spec.main or field) for prefix in prefixes],
        "paper": [prefix + paper for prefix in prefixes],
    }
    return Dataset(task or family, spec.family, labels, **splits, counts=counts, main=main)


def label_names(task, splits, counts):
    """Return the labels seen in training, in the order of `task.names`, then "O", then alphabetically."""
    if task.family not in ("sc", "tc"):
        return []
    seen = {label for example in splits["train"] for label in example.labels}
    order = {name: i for i, name in enumerate((*task.names, "O"))}
    labels = sorted(seen, key=lambda label: (order.get(label, len(order)), label))
    if len(labels) < 2:
        raise DataError(f"{task.paths['train']}: all its examples are {labels[0]!r}: there is nothing to learn")
    for split in ("validation", "test"):
        unseen = sum(label not in seen for example in splits[split] for label in example.labels)
        counts[f"{split}: labels never seen in training"] = unseen
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


def hold_out(examples, keys, fraction=VALIDATION_FRACTION):
    """Return the examples in two lists; the second has `fraction` of the distinct keys, at random and at least one."""
    distinct = list(dict.fromkeys(keys))
    count = max(1, round(fraction * len(distinct)))
    if count >= len(distinct):
        raise DataError(f"{len(distinct)} different examples are too few to hold some of them out: give --validation")
    # RandomState's stream is frozen, unlike that of newer generators: the same split with every version of numpy.
    held = {distinct[i] for i in np.random.RandomState(SPLIT_SEED).permutation(len(distinct))[:count]}
    pairs = list(zip(examples, keys, strict=True))
    return [example for example, key in pairs if key not in held], [example for example, key in pairs if key in held]


def example_splits(task, counts):
    """Return {split: examples} of sc, tc or qa."""
    splits = {split: read_all(path, task, split, counts) for split, path in task.paths.items()}
    if "validation" not in splits:
        train = splits["train"]
        splits["train"], splits["validation"] = hold_out(train, [example.key for example in train])
        counts[f"validation: held out of train, at random by {KEY[task.family]}"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules = Counter()
    examples = [example for file in find_files(path) for example in READERS[task.family](file, task, split, rules)]
    if not examples:
        raise DataError(f"{path}: there are no examples in it")
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


def prefixed(name, text):
    return f"{name}: {text}" if name else text


def retrieval_splits(task, full_corpus, counts):
    """Return the splits of ir: Pairs to train on, and {name of the set: Retrieval} for validation and for test."""
    sets, train = task.sets or {"": task.paths}, task.paths["train"]
    queries, qrels = {}, {}  # {folder: {query id: text}}, {(set, split): {query id: {document id: grade}}}
    named = defaultdict(dict)  # {folder: {document id: the judgments that name it}}
    for name, split, folder, path in judgment_files(task):
        grades = qrels[name, split] = read_judgments(path, folder, queries, prefixed(name, split), counts)
        named[folder].update((document, path) for query in grades for document in grades[query])
    for name, paths in sets.items():
        if (name, "validation") not in qrels:
            source, fraction = (name, "test"), 0.5
            if paths["corpus"] == train:
                source, fraction = ("", "train"), VALIDATION_FRACTION
            texts = [queries[paths["corpus"]][query] for query in qrels[source]]
            kept, held = hold_out(qrels[source].items(), texts, fraction)
            qrels[source], qrels[name, "validation"] = dict(kept), dict(held)
            counts[prefixed(name, f"validation: queries held out of {source[1]}, at random")] = len(held)

    searched = [paths["corpus"] for paths in sets.values() if full_corpus]
    documents = {folder: read_corpus(folder, named[folder], folder in searched) for folder in named}
    splits = {"train": [], "validation": {}, "test": {}}
    for name, paths in sets.items():
        corpus, size = documents[paths["corpus"]]
        if not full_corpus:
            judged = [*qrels[name, "validation"].values(), *qrels[name, "test"].values()]
            corpus = {document: corpus[document] for grades in judged for document in grades}
            counts[prefixed(name, "corpus: documents left out, as they are not judged")] = size - len(corpus)
        counts[prefixed(name, "corpus: empty documents")] = sum(not text.strip() for text in corpus.values())
        for split in ("validation", "test"):
            grades = qrels[name, split]
            asked = {query: queries[paths["corpus"]][query] for query in grades}
            splits[split][name] = Retrieval(asked, corpus, grades)
    if is_beir(train):
        for query, grades in qrels["", "train"].items():
            relevant = [document for document in grades if grades[document] > 0]
            splits["train"] += [Pair(queries[train][query], documents[train][0][document]) for document in relevant]
    else:
        splits["train"] = read_all(train, task, "train", counts)
    return splits


def read_judgments(path, folder, queries, name, counts):
    """Return the judgments of the queries that have a relevant document; put the folder's queries into `queries`."""
    qrels, texts = readers.read_qrels(find_files(path)[0])
    if texts:
        queries.setdefault(folder, {}).update(texts)
    elif folder not in queries:
        queries[folder], _ = readers.read_texts_by_id(find_files(f"{folder}/queries.jsonl")[0])
    if absent := [query for query in qrels if query not in queries[folder]]:
        raise DataError(f"{path}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
    useful = {query: qrels[query] for query in answerable(qrels)}
    if not useful:
        raise DataError(f"{path}: no query has a relevant document")
    counts[f"{name}: queries left out, without a relevant document"] = len(qrels) - len(useful)
    return useful


def read_corpus(folder, named, full):
    """Return {document id: text} of all documents, or of the named ones only, and how many the corpus has."""
    path = find_files(f"{folder}/corpus.jsonl")[0]
    documents, size = readers.read_texts_by_id(path, None if full else named)
    if absent := [document for document in named if document not in documents]:
        named_by = f"the first is {absent[0]!r}, of {named[absent[0]]}"
        raise DataError(f"{path}: {len(absent)} judged documents are not in it, {named_by}")
    return documents, size
