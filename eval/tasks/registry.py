"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring your own.

    python -m eval.tasks                       # list them: what each is, where its files go, whether they are there
    python -m eval.tasks sst2                  # show its counts and its first examples
    load("sst2")                               # return a Dataset
    load(family="sc", train="mine.csv", test="test.csv", columns=("title", "body"), label="topic", form="{}: {}")

There are four families: sc, sequence classification; tc, token classification; qa, extractive question answering; ir,
information retrieval. The splits are the paper's (arXiv 2507.00994): SC and QA are tested on the official validation
set, because the labels of the test sets are not public, and validated on 5 % of train. Unlike in the paper, a text,
sentence, context or query is on one side of a random split only.
"""

import difflib
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from errors import DataError
from eval.tasks import embedded
from eval.tasks.examples import Dataset, Pair, Retrieval
from eval.tasks.readers import (
    find_files,
    read_pairs,
    read_qrels,
    read_questions,
    read_sentences,
    read_texts,
    read_texts_by_id,
    suffix,
)

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
READERS = {"sc": read_texts, "tc": read_sentences, "qa": read_questions, "ir": read_pairs}


# ----------------------------------------------------------------------------
# The data sets


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what they hold. Paths are relative to its folder; files may also be .gz."""

    family: str
    folder: str = ""
    source: str = ""  # where to get the files, and under which terms
    train: str = ""  # sc, tc, qa: a file, a pattern of files or hf:NAME:SPLIT; ir: a BEIR folder or a file of pairs
    validation: str = ""  # "" = held out of train
    test: str = ""
    sets: dict = field(default_factory=dict)  # ir: {name: (folder, validation judgments or "", test judgments)}
    columns: tuple = ()  # sc: of the texts; tc: of the words; ir: of query and document. () = the family's default
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's default
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other
    names: tuple = ()  # sc: what the labels 0, 1, ... mean
    outside: tuple = ()  # tc: types of entities that are read as O
    main: tuple = ()  # the field's main metrics, where they are not the family's
    hub: dict = field(default_factory=dict)  # the fields that differ when it is read from the Hugging Face hub


def hub(name, validation="", test="test", **fields):
    """Return the fields of a Task whose splits are downloaded from the hub."""
    splits = {"train": "train", "validation": validation, "test": test}
    return {split: f"hf:{name}:{source}" for split, source in splits.items() if source} | fields


GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"

TASKS = {
    "sst2": Task(
        "sc",
        "sst2",
        f"train.tsv and dev.tsv of {GLUE}SST-2.zip (research use)",
        train="train.tsv",
        test="dev.tsv",
        columns=("sentence",),
        names=("negative", "positive"),
        hub=hub("nyu-mll/glue:sst2", test="validation"),
    ),
    "qqp": Task(
        "sc",
        "qqp",
        f"train.tsv and dev.tsv of {GLUE}QQP-clean.zip (Quora's terms: not commercial)",
        train="train.tsv",
        test="dev.tsv",
        columns=("question1", "question2"),
        label="is_duplicate",
        form="Question 1: {}\nQuestion 2: {}",
        names=("not_duplicate", "duplicate"),
        main=("f1",),
        hub=hub("nyu-mll/glue:qqp", test="validation", label="label"),
    ),
    "mnli": Task(  # matched
        "sc",
        "mnli",
        f"train.tsv and dev_matched.tsv of {GLUE}MNLI.zip (OANC's and other open licenses)",
        train="train.tsv",
        test="dev_matched.tsv",
        columns=("sentence1", "sentence2"),
        label="gold_label",
        form="Premise: {}\nHypothesis: {}",
        hub=hub("nyu-mll/glue:mnli", test="validation_matched", columns=("premise", "hypothesis"), label="label"),
    ),
    "conll2003": Task(  # four columns: word, part of speech, chunk, entity in IOB1 (BIO in newer copies)
        "tc",
        "conll2003",
        "eng.train, eng.testa and eng.testb: https://www.clips.uantwerpen.be/conll2003/ner/ makes them from the "
        "Reuters corpus (https://trec.nist.gov/data/reuters/reuters.html: for research, on registration)",
        train="eng.train",
        validation="eng.testa",
        test="eng.testb",
        hub=hub("hgissbkh/conll2003-en", "validation", columns=("words",), label="ner"),
    ),
    "ontonotes": Task(  # CoNLL-2012's columns; all genres but pt, the New Testament, in which no names are marked
        "tc",
        "ontonotes",
        "the folders train, development and test of CoNLL-2012's v4 data (https://conll.cemantix.org/2012/data.html), "
        "into which its script skeleton2conll.sh fills the words of OntoNotes 5 "
        "(https://catalog.ldc.upenn.edu/LDC2013T19: free, on registration)",
        train="train/**/english/annotations/[!p]*/**/*gold_conll",
        validation="development/**/english/annotations/[!p]*/**/*gold_conll",
        test="test/**/english/annotations/[!p]*/**/*gold_conll",
        columns=("3",),
        label="10",
    ),
    "uner": Task(  # English EWT: number, word, tag, ...; the data set's own loader reads OTH and "B-O" as O
        "tc",
        "uner",
        "the .iob2 files of https://github.com/UniversalNER/UNER_English-EWT (CC BY-SA 4.0)",
        train="en_ewt-ud-train.iob2",
        validation="en_ewt-ud-dev.iob2",
        test="en_ewt-ud-test.iob2",
        columns=("1",),
        label="2",
        outside=("OTH", "O"),
        hub=hub("hgissbkh/uner_en", "validation", columns=("tokens",), label="ner_tags"),
    ),
    "wnut17": Task(
        "tc",
        "wnut17",
        "wnut17train.conll, emerging.dev.conll and emerging.test.annotated of "
        "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)",
        train="wnut17train.conll",
        validation="emerging.dev.conll",
        test="emerging.test.annotated",
    ),
    "squad": Task(
        "qa",
        "squad_v1.1",
        f"{SQUAD}train-v1.1.json and {SQUAD}dev-v1.1.json (CC BY-SA 4.0)",
        train="train-v1.1.json",
        test="dev-v1.1.json",
        hub=hub("rajpurkar/squad", test="validation"),
    ),
    "squad_v2": Task(
        "qa",
        "squad_v2",
        f"{SQUAD}train-v2.0.json and {SQUAD}dev-v2.0.json (CC BY-SA 4.0)",
        train="train-v2.0.json",
        test="dev-v2.0.json",
        hub=hub("rajpurkar/squad_v2", test="validation"),
    ),
    "record": Task(
        "qa",
        "record",
        "train.json and dev.json of https://sheng-z.github.io/ReCoRD-explorer/ (terms on that page)",
        train="train.json",
        test="dev.json",
    ),
    "msmarco": Task(  # the test judgments of MS MARCO are those of TREC DL 2019: 43 queries, grades 0 to 3
        "ir",
        "",
        f"{BEIR}nq.zip as nq_beir, {BEIR}msmarco.zip as msmarco_beir, and corpus.jsonl.gz, dev.jsonl.gz and "
        "test.jsonl.gz of mldr-v1.0-en in https://huggingface.co/datasets/Shitao/MLDR as mldr_en (NQ CC BY-SA 3.0, MS "
        "MARCO not commercial, MLDR MIT)",
        train="msmarco_beir",
        sets={
            "nq": ("nq_beir", "", "nq_beir/qrels/test.tsv"),
            "msmarco": ("msmarco_beir", "msmarco_beir/qrels/dev.tsv", "msmarco_beir/qrels/test.tsv"),
            "mldr": ("mldr_en", "mldr_en/dev.jsonl", "mldr_en/test.jsonl"),
        },
    ),
    "scifact": Task(
        "ir",
        "",
        f"{BEIR}scifact.zip as scifact_beir (claims CC BY 4.0, abstracts ODC-By 1.0)",
        train="scifact_beir",
        sets={"": ("scifact_beir", "", "scifact_beir/qrels/test.tsv")},
    ),
}


def in_folder(task, folder):
    """Return the task with its paths joined to the folder of all tasks."""
    root = Path(folder, task.folder)

    def join(path):
        return path and str(root / path)

    sets = {name: tuple(map(join, paths)) for name, paths in task.sets.items()}
    return replace(task, folder=str(root), sets=sets, **{split: join(getattr(task, split)) for split in SPLITS})


def needed_files(task):
    """Return the files that must exist, as [(setting, path)]; the path is "" where you must give the setting."""
    if task.family != "ir":
        paths = [(split, getattr(task, split)) for split in SPLITS]
    else:
        beir = [task.train] if is_beir(task.train) else []
        paths = [] if task.sets else [("corpus", "")]
        paths.append(("train", f"{task.train}/qrels/train.tsv" if beir else task.train))
        for folder, validation, test in task.sets.values():
            paths += [("corpus", f"{folder}/corpus.jsonl"), ("validation", validation), ("test", test)]
            beir += [folder] if suffix(test) == ".tsv" else []
        paths += [("corpus", f"{folder}/{file}") for folder in beir for file in ("corpus.jsonl", "queries.jsonl")]
    return [(setting, path) for setting, path in dict.fromkeys(paths) if path or setting != "validation"]


def missing(name, task):
    """Return a text that lists the missing files and where to get them; "" if none is missing."""
    absent = [path or f"--{setting}" for setting, path in needed_files(task) if not find_files(path)]
    if not absent:
        return ""
    lines = [f"task={name}: missing:" if name else f"family={task.family}: missing:", *absent]
    if name:
        lines.append(f"Get {task.source}; they go into {task.folder}")
    if task.hub:
        lines.append("Or pip install datasets, to have them downloaded.")
    return "\n  ".join(lines)


def is_beir(train):
    """Return whether retrieval is trained on the judgments of a BEIR folder, and not on a file of pairs."""
    return bool(train) and not train.startswith("hf:") and suffix(train) not in (".json", ".jsonl", ".tsv", ".csv")


# ----------------------------------------------------------------------------
# Loading


def load(task="", family="", folder="data/tasks", corpus="", full_corpus=True, **fields):
    """Return a Dataset: one of TASKS or EMBEDDED by name, or your own by family and paths.

    task: a name; its files are in a folder of their own in `folder`.
    family: "sc", "tc", "qa" or "ir", where there is no task.
    fields: train, validation, test, columns, label, form; those that are not empty replace the task's own. The first
        three are paths; a pattern such as part-*.jsonl stands for all the files that match. Without validation, 5 % of
        train's distinct texts, sentences, contexts or queries are held out at random.
        sc: .tsv (a header, no quoting), .csv or .jsonl. `columns` are the texts (default "text") and go into `form`
            (default: one below the other), `label` is the class (default "label"). With two classes, F1 is that of the
            second in alphabetical order.
        tc: words and tags in CoNLL columns. `columns` and `label` are the numbers of the word's and the tag's column,
            counted from 0 (default: first and last). Or .jsonl with lists: `columns` (default "tokens"), `label`.
        qa: SQuAD's .json, v1.1 or v2; or .jsonl with id, question, context, answers {"text": [], "answer_start": []}.
        ir: train is a BEIR folder with qrels/train.tsv (default: corpus), a table of pairs (`columns`, default
            "query" and "document") or a SQuAD .json, read as questions and their contexts. validation and test are
            judgments: .tsv like BEIR's or .jsonl like MLDR's (default: qrels/dev.tsv and qrels/test.tsv of corpus).
            Without validation judgments, it holds out queries of train if that is corpus too, else half of test's.
        A table may also be hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, if the datasets package is installed.
    corpus: ir: a folder with corpus.jsonl, and with queries.jsonl if the judgments are .tsv.
    full_corpus: ir: False keeps only those documents of a corpus that the validation or test judgments name. That takes
        little memory and is all that the paper's metric needs. The field's metric is not defined on it, so
        main["field"] is empty.

    Raises DataError: before it reads any file, with everything that is missing and where to get it; later with file and
        line.
    """
    given = {name: value for name, value in dict(corpus=corpus, **fields).items() if value}
    given |= {name: str(Path(given[name])) for name in ("train", "corpus") if name in given}  # one spelling of a folder
    check_arguments(task, family, given)
    corpus = given.pop("corpus", "")
    if task in EMBEDDED:
        return embedded.load(task)
    spec = replace(in_folder(TASKS[task], folder) if task else own_task(family, corpus), **given)
    if spec.family == "ir":
        splits = [given.get(split, "") for split in ("validation", "test")]
        sets = {name: (at, splits[0] or first, splits[1] or second) for name, (at, first, second) in spec.sets.items()}
        spec = replace(spec, sets=sets)
    absent = missing(task, spec)
    if absent and spec.hub and not Path(spec.folder).exists() and find_spec("datasets"):
        spec = replace(spec, **spec.hub | given)
    elif absent:
        raise DataError(absent)
    counts = Counter()
    try:
        splits = retrieval_splits(spec, full_corpus, counts) if spec.family == "ir" else example_splits(spec, counts)
    except DataError as error:
        raise DataError(f"{error}\n{absent}" if absent else str(error)) from None  # the hub failed: name the files
    labels = label_names(spec, splits, counts)
    count_known_keys(spec.family, splits, counts)
    counts = {rule: count for rule, count in counts.items() if count}
    return Dataset(task or family, spec.family, labels, **splits, counts=counts, main=main_metrics(spec, full_corpus))


def check_arguments(task, family, given):
    """Raise a DataError for arguments of `load` that do not fit together."""
    names = [*TASKS, *EMBEDDED]
    if task and task not in names:
        near = difflib.get_close_matches(task, names, 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"task={task}: no such task.{hint} There are {', '.join(names)}")
    of_task = (TASKS[task].family if task in TASKS else task[-2:]) if task else family
    if of_task not in MAIN:
        raise DataError(f"family={family!r}: give a task, or one of the families {', '.join(MAIN)}")
    if family not in ("", of_task):
        raise DataError(f"family={family}: but {task} is of the family {of_task}")
    allowed = {*SPLITS, *SETTINGS[of_task]} - ({"corpus"} if task else set())
    if task in EMBEDDED:
        allowed = set()
    elif task and len(TASKS[task].sets) > 1:  # each set has judgments of its own
        allowed -= {"validation", "test"}
    if unused := [name for name in given if name not in allowed]:
        takes = f"only {', '.join(sorted(allowed))}" if allowed else "none"
        raise DataError(f"{', '.join(unused)}: {task or f'family={family}'} takes {takes} of your own")


def own_task(family, corpus):
    """Return the task of a user's own data, before the paths and columns that the user gives."""
    dev = f"{corpus}/qrels/dev.tsv"
    sets = {"": (corpus, dev if find_files(dev) else "", f"{corpus}/qrels/test.tsv")} if corpus else {}
    return Task(family, train=corpus, sets=sets)


def main_metrics(task, full_corpus):
    """Return {"field": [metrics], "paper": [metrics]}, with a prefix for each of several retrieval sets."""
    field, paper = MAIN[task.family]
    field = (task.main or (field,)) if full_corpus or task.family != "ir" else ()
    prefixes = [name and f"{name}/" for name in task.sets or [""]]
    return {
        "field": [prefix + metric for prefix in prefixes for metric in field],
        "paper": [prefix + paper for prefix in prefixes],
    }


def label_names(task, splits, counts):
    """Return the labels seen in training, in the order of `task.names`, then "O", then alphabetically."""
    if task.family not in ("sc", "tc"):
        return []
    seen = {label for example in splits["train"] for label in example.labels}
    order = {name: i for i, name in enumerate((*task.names, "O"))}
    labels = sorted(seen, key=lambda label: (order.get(label, len(order)), label))
    if len(labels) < 2:
        raise DataError(f"{task.train}: all its examples are {labels[0]!r}: there is nothing to learn")
    for split in ("validation", "test"):
        unseen = sum(label not in seen for example in splits[split] for label in example.labels)
        counts[f"{split}: labels never seen in training"] = unseen
    return labels


def count_known_keys(family, splits, counts):
    """Count the validation and test examples whose key is also in train."""
    known = {example.key for example in splits["train"]}
    for split in ("validation", "test"):
        if family == "ir":
            keys = [text for retrieval in splits[split].values() for text in retrieval.queries.values()]
        else:
            keys = [example.key for example in splits[split]]
        counts[f"{split}: examples whose {KEY[family]} is also in train"] = sum(key in known for key in keys)


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
    splits = {split: read_all(getattr(task, split), task, split, counts) for split in SPLITS}
    if not task.validation:
        train = splits["train"]
        splits["train"], splits["validation"] = hold_out(train, [example.key for example in train])
        counts[f"validation: held out of train, at random by {KEY[task.family]}"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """Return the examples of all files of a path."""
    rules = Counter()
    examples = [example for file in find_files(path) for example in READERS[task.family](file, task, split, rules)]
    if path and not examples:
        raise DataError(f"{path}: there are no examples in it")
    counts.update({f"{split}: {rule}": count for rule, count in rules.items()})
    return examples


def prefixed(name, text):
    return f"{name}: {text}" if name else text


def retrieval_splits(task, full_corpus, counts):
    """Return the splits of ir: Pairs to train on, and {name of the set: Retrieval} for validation and for test."""
    files = [
        (name, split, folder, path)
        for name, (folder, *paths) in task.sets.items()
        for split, path in zip(("validation", "test"), paths)
        if path
    ]
    if is_beir(task.train):
        files.append(("", "train", task.train, f"{task.train}/qrels/train.tsv"))
    queries, qrels = {}, {}  # {folder: {query id: text}}, {(set, split): {query id: {document id: grade}}}
    named = {}  # {folder: {document id: the judgments that name it}}
    for name, split, folder, path in files:
        grades = read_judgments(path, folder, queries, prefixed(name, split), counts)
        qrels[name, split] = grades
        named.setdefault(folder, {}).update((document, path) for query in grades for document in grades[query])
    hold_out_queries(task, queries, qrels, counts)

    splits = {"train": [], "validation": {}, "test": {}}
    searched = {folder for folder, *_ in task.sets.values()} if full_corpus else set()
    documents = {folder: read_corpus(folder, named[folder], folder in searched) for folder in named}
    for name, (folder, *_) in task.sets.items():
        corpus, size = documents[folder]
        if not full_corpus:
            judged = [*qrels[name, "validation"].values(), *qrels[name, "test"].values()]
            corpus = {document: corpus[document] for grades in judged for document in grades}
            counts[prefixed(name, "corpus: documents left out, as they are not judged")] = size - len(corpus)
        counts[prefixed(name, "corpus: empty documents")] = sum(not text.strip() for text in corpus.values())
        for split in ("validation", "test"):
            grades = qrels[name, split]
            asked = {query: queries[folder][query] for query in grades}
            splits[split][name] = Retrieval(asked, corpus, grades)
    if is_beir(task.train):
        texts, (corpus, _) = queries[task.train], documents[task.train]
        for query, grades in qrels["", "train"].items():
            splits["train"] += [Pair(texts[query], corpus[document]) for document in grades if grades[document] > 0]
    else:
        splits["train"] = read_all(task.train, task, "train", counts)
    return splits


def read_judgments(path, folder, queries, name, counts):
    """Return the judgments of the queries that have a relevant document; put the folder's queries into `queries`."""
    qrels, texts = read_qrels(find_files(path)[0])
    if texts:
        queries.setdefault(folder, {}).update(texts)
    elif folder not in queries:
        queries[folder], _ = read_texts_by_id(find_files(f"{folder}/queries.jsonl")[0])
    if absent := [query for query in qrels if query not in queries[folder]]:
        raise DataError(f"{path}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
    useful = {query: grades for query, grades in qrels.items() if max(grades.values()) > 0}
    if not useful:
        raise DataError(f"{path}: no query has a relevant document")
    counts[f"{name}: queries left out, without a relevant document"] = len(qrels) - len(useful)
    return useful


def hold_out_queries(task, queries, qrels, counts):
    """Give a set without validation judgments queries of train, if it is trained on its corpus, else half of test."""
    for name, (folder, validation, _) in task.sets.items():
        if validation:
            continue
        source, fraction = (("", "train"), VALIDATION_FRACTION) if folder == task.train else ((name, "test"), 0.5)
        ids = list(qrels[source])
        grades, (kept, held) = qrels[source], hold_out(ids, [queries[folder][query] for query in ids], fraction)
        qrels[source] = {query: grades[query] for query in kept}
        qrels[name, "validation"] = {query: grades[query] for query in held}
        counts[prefixed(name, f"validation: queries held out of {source[1]}, at random")] = len(held)


def read_corpus(folder, named, full):
    """Return {document id: text} of all documents, or of the named ones only, and how many the corpus has."""
    path = find_files(f"{folder}/corpus.jsonl")[0]
    documents, size = read_texts_by_id(path, None if full else named)
    if absent := [document for document in named if document not in documents]:
        first = absent[0]
        raise DataError(
            f"{path}: {len(absent)} judged documents are not in it, the first is {first!r}, of {named[first]}"
        )
    return documents, size
