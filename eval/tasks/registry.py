"""The data sets that checkpoints are fine-tuned on, by name, and the way to bring one's own.

    python -m eval.tasks                       # the list: what each is, where its files go, whether they are there
    python -m eval.tasks sst2                  # its counts and its first examples
    load("sst2")                               # a Dataset
    load(family="sc", train="mine.csv", test="test.csv", columns=("title", "body"), label="topic", form="{}: {}")

Four families: sc, sequence classification; tc, token classification; qa, extractive question answering; ir, information
retrieval. The splits are those of the recipe (README): SC and QA are tested on the official validation set, as the test
sets' labels are not public, and validated on 5 % of train. A text, context or query is on one side of a random split.
"""

import difflib
import textwrap
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from errors import DataError
from eval.tasks import embedded
from eval.tasks.examples import Dataset, Pair, Question, Retrieval, Sentence, Text
from eval.tasks.readers import (
    find,
    read_pairs,
    read_qrels,
    read_questions,
    read_sentences,
    read_texts,
    read_texts_by_id,
    suffix,
)

EMBEDDED = [f"embedded-{family}" for family in ("sc", "tc", "qa", "ir")]  # made in eval/embedded.py, from Python itself
SEED = 42  # of every random split, so that all runs of a task share its splits


# ----------------------------------------------------------------------------
# The data sets


@dataclass(frozen=True)
class Task:
    """Where the files of a data set are and what is in them. Paths are below its folder; each file may also be .gz."""

    family: str
    folder: str = ""
    source: str = ""  # where to get the files, and on which terms
    train: str = ""  # sc, tc, qa: a file, a pattern of files or hf:NAME:SPLIT; ir: a BEIR folder or a file of pairs
    validation: str = ""  # "" = held out of train
    test: str = ""
    sets: dict = field(default_factory=dict)  # ir: {name: (folder, validation judgements or "", test judgements)}
    columns: tuple = ()  # sc: of the texts; tc: of the words; ir: of query and document. () = the family's
    label: str = ""  # sc, tc: column of the label or tag. "" = the family's
    form: str = ""  # sc: the text that the columns are put into. "" = one below the other
    names: tuple = ()  # sc: what the labels 0, 1, ... stand for
    outside: tuple = ()  # tc: types of entities that are read as O
    main: tuple = ()  # the field's main metrics, where not the family's
    hub: dict = field(default_factory=dict)  # what is different when read from the Hugging Face hub


MAIN = {"sc": ("accuracy", "accuracy"), "tc": ("entity_f1", "sentence_macro_f1"), "qa": ("f1", "token_set_f1"),
        "ir": ("ndcg@10", "ndcg@10_judged")}  # fmt: skip
USED = {"sc": {"columns", "label", "form"}, "tc": {"columns", "label"}, "qa": set(), "ir": {"columns"}}
SPLITS = ("train", "validation", "test")

GLUE = "https://dl.fbaipublicfiles.com/glue/data/"
BEIR = "https://public.ukp.informatik.tu-darmstadt.de/thakur/BEIR/datasets/"
SQUAD = "https://rajpurkar.github.io/SQuAD-explorer/dataset/"

TASKS = {
    "sst2": Task(
        "sc", "sst2", f"train.tsv and dev.tsv of {GLUE}SST-2.zip (research use)",
        train="train.tsv", test="dev.tsv", columns=("sentence",), label="label", names=("negative", "positive"),
        hub=dict(train="hf:nyu-mll/glue:sst2:train", test="hf:nyu-mll/glue:sst2:validation"),
    ),
    "qqp": Task(
        "sc", "qqp", f"train.tsv and dev.tsv of {GLUE}QQP-clean.zip (Quora's terms: not commercial)",
        train="train.tsv", test="dev.tsv", columns=("question1", "question2"), label="is_duplicate",
        form="Question 1: {}\nQuestion 2: {}", names=("not_duplicate", "duplicate"), main=("f1",),
        hub=dict(train="hf:nyu-mll/glue:qqp:train", test="hf:nyu-mll/glue:qqp:validation", label="label"),
    ),
    "mnli": Task(  # matched
        "sc", "mnli", f"train.tsv and dev_matched.tsv of {GLUE}MNLI.zip (OANC's and other open licences)",
        train="train.tsv", test="dev_matched.tsv", columns=("sentence1", "sentence2"), label="gold_label",
        form="Premise: {}\nHypothesis: {}",
        hub=dict(train="hf:nyu-mll/glue:mnli:train", test="hf:nyu-mll/glue:mnli:validation_matched",
                 columns=("premise", "hypothesis"), label="label"),
    ),
    "conll2003": Task(  # four columns: word, part of speech, chunk, entity in IOB1 (BIO in newer copies)
        "tc", "conll2003", "eng.train, eng.testa and eng.testb: https://www.clips.uantwerpen.be/conll2003/ner/ makes "
        "them from the Reuters corpus (https://trec.nist.gov/data/reuters/reuters.html: for research, on registration)",
        train="eng.train", validation="eng.testa", test="eng.testb",
        hub=dict(train="hf:hgissbkh/conll2003-en:train", validation="hf:hgissbkh/conll2003-en:validation",
                 test="hf:hgissbkh/conll2003-en:test", columns=("words",), label="ner"),
    ),
    "ontonotes": Task(  # CoNLL-2012's columns; all genres but pt, the New Testament, in which no names are marked
        "tc", "ontonotes", "the folders train, development and test of CoNLL-2012's v4 data "
        "(https://conll.cemantix.org/2012/data.html), into which its script skeleton2conll.sh fills the words of "
        "OntoNotes 5 (https://catalog.ldc.upenn.edu/LDC2013T19: free, on registration)",
        train="train/**/english/annotations/[!p]*/**/*gold_conll",
        validation="development/**/english/annotations/[!p]*/**/*gold_conll",
        test="test/**/english/annotations/[!p]*/**/*gold_conll", columns=("3",), label="10",
    ),
    "uner": Task(  # English EWT: number, word, tag, ...; the data set's own loader reads OTH and "B-O" as O
        "tc", "uner", "the .iob2 files of https://github.com/UniversalNER/UNER_English-EWT (CC BY-SA 4.0)",
        train="en_ewt-ud-train.iob2", validation="en_ewt-ud-dev.iob2", test="en_ewt-ud-test.iob2",
        columns=("1",), label="2", outside=("OTH", "O"),
        hub=dict(train="hf:hgissbkh/uner_en:train", validation="hf:hgissbkh/uner_en:validation",
                 test="hf:hgissbkh/uner_en:test", columns=("tokens",), label="ner_tags"),
    ),
    "wnut17": Task(
        "tc", "wnut17", "wnut17train.conll, emerging.dev.conll and emerging.test.annotated of "
        "https://github.com/leondz/emerging_entities_17 (CC BY 4.0)",
        train="wnut17train.conll", validation="emerging.dev.conll", test="emerging.test.annotated",
    ),
    "squad": Task(
        "qa", "squad_v1.1", f"{SQUAD}train-v1.1.json and {SQUAD}dev-v1.1.json (CC BY-SA 4.0)",
        train="train-v1.1.json", test="dev-v1.1.json",
        hub=dict(train="hf:rajpurkar/squad:train", test="hf:rajpurkar/squad:validation"),
    ),
    "squad_v2": Task(
        "qa", "squad_v2", f"{SQUAD}train-v2.0.json and {SQUAD}dev-v2.0.json (CC BY-SA 4.0)",
        train="train-v2.0.json", test="dev-v2.0.json",
        hub=dict(train="hf:rajpurkar/squad_v2:train", test="hf:rajpurkar/squad_v2:validation"),
    ),
    "record": Task(
        "qa", "record", "train.json and dev.json of https://sheng-z.github.io/ReCoRD-explorer/ (terms on that page)",
        train="train.json", test="dev.json",
    ),
    "msmarco": Task(  # the test judgements of MS MARCO are those of TREC DL 2019: 43 queries, grades 0 to 3
        "ir", "", f"{BEIR}nq.zip as nq_beir, {BEIR}msmarco.zip as msmarco_beir, and corpus.jsonl.gz, dev.jsonl.gz and "
        "test.jsonl.gz of mldr-v1.0-en in https://huggingface.co/datasets/Shitao/MLDR as mldr_en (NQ CC BY-SA 3.0, MS "
        "MARCO not commercial, MLDR MIT)",
        train="msmarco_beir",
        sets={"nq": ("nq_beir", "", "nq_beir/qrels/test.tsv"),
              "msmarco": ("msmarco_beir", "msmarco_beir/qrels/dev.tsv", "msmarco_beir/qrels/test.tsv"),
              "mldr": ("mldr_en", "mldr_en/dev.jsonl", "mldr_en/test.jsonl")},
    ),
    "scifact": Task(
        "ir", "", f"{BEIR}scifact.zip as scifact_beir (claims CC BY 4.0, abstracts ODC-By 1.0)",
        train="scifact_beir", sets={"": ("scifact_beir", "", "scifact_beir/qrels/test.tsv")},
    ),
}  # fmt: skip


# ----------------------------------------------------------------------------
# Loading


def load(task="", family="", folder="data/tasks", train="", validation="", test="", corpus="", columns=(), label="",
         form="", validation_fraction=0.05, full_corpus=True):  # fmt: skip
    """Return a Dataset: one of TASKS or EMBEDDED by name, or one's own by family and paths.

    task: a name; its files are in a folder of their own in `folder`. Settings below that are not empty replace its own.
    family: "sc", "tc", "qa" or "ir", where there is no task.
    train, test, validation: paths; a pattern such as part-*.jsonl is all the files that match. Without validation,
        `validation_fraction` of train's distinct texts, sentences, contexts or queries is held out at random.
        sc: .tsv (a header, no quoting), .csv or .jsonl. `columns` are the texts (default "text") and go into `form`
            (default: one below the other), `label` is the class (default "label"). Where there are two classes, F1
            is that of the second in the order of the alphabet.
        tc: words and tags in CoNLL columns. `columns` and `label` are the numbers of the word's and of the tag's,
            counted from 0 (default: first and last). Or .jsonl with lists: `columns` (default "tokens"), `label`.
        qa: SQuAD's .json, v1.1 or v2; or .jsonl with id, question, context, answers {"text": [], "answer_start": []}.
        ir: train is a BEIR folder with qrels/train.tsv (default: corpus), a table of pairs (`columns`, default
            "query" and "document") or a SQuAD .json, read as questions and their contexts. validation and test are
            judgements: .tsv as BEIR's or .jsonl as MLDR's (default: qrels/dev.tsv and qrels/test.tsv of corpus).
            Without any for validation, it takes queries of train where that is corpus too, else half of those of test.
        A table may also be hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT, if the datasets package is installed.
    corpus: ir: a folder with corpus.jsonl, and with queries.jsonl where the judgements are .tsv.
    full_corpus: ir: False keeps of each corpus only what the validation or test judgements name. That takes little
        memory and is all that the paper's metric asks for; the field's is not defined on it, so main["field"] is empty.

    Raises DataError: before any file is read, with all that is missing and where to get it; else with file and line.
    """
    train, corpus = (path and str(Path(path)) for path in (train, corpus))  # so that equal folders are equal strings
    given = dict(train=train, validation=validation, test=test, columns=tuple(columns), label=label, form=form)
    given = {name: value for name, value in given.items() if value}
    if task in EMBEDDED:
        if given or corpus:
            raise DataError(f"task={task}: is made from Python itself and takes no {', '.join(given) or 'corpus'}")
        return embedded.load(task)
    if task and task not in TASKS:
        near = difflib.get_close_matches(task, [*TASKS, *EMBEDDED], 1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise DataError(f"task={task}: no such task.{hint} There are {', '.join([*TASKS, *EMBEDDED])}")
    if task and family not in ("", TASKS[task].family):
        raise DataError(f"family={family}: but {task} is of the family {TASKS[task].family}")
    family = TASKS[task].family if task else family
    if family not in MAIN:
        raise DataError(f"family={family!r}: give a task, or one of the families {', '.join(MAIN)}")
    if corpus and (task or family != "ir"):
        raise DataError(f"corpus={corpus}: only family=ir takes it, and a task has its own")
    if idle := {"columns", "label", "form"} & set(given) - USED[family]:
        raise DataError(f"{', '.join(sorted(idle))}: the family {family} has no use for it")

    spec = replace(in_folder(TASKS[task], folder) if task else own(family, corpus), **given)
    if family == "ir" and (validation or test):
        if len(spec.sets) > 1:
            raise DataError(f"validation, test: {task} keeps the judgements of {', '.join(spec.sets)}")
        sets = {name: (at, validation or first, test or second) for name, (at, first, second) in spec.sets.items()}
        spec = replace(spec, sets=sets)
    absent = missing(task, spec)
    if absent and spec.hub and not Path(spec.folder).exists() and find_spec("datasets"):
        spec = replace(spec, **{**spec.hub, **given})
    elif absent:
        raise DataError(absent)

    counts = Counter()
    try:
        if family == "ir":
            splits = retrieval_splits(spec, validation_fraction, full_corpus, counts)
        else:
            splits = file_splits(spec, validation_fraction, counts)
    except DataError as error:
        raise DataError(f"{error}\n{absent}" if absent else str(error)) from None  # the hub failed: what else there is
    labels = labels_of(spec, splits, counts)
    trained_on = set(keys(family, splits["train"]))
    for split in ("validation", "test"):
        seen = sum(key in trained_on for key in keys(family, splits[split]))
        counts[f"{split}: examples whose {KEY[family]} is also in train"] = seen
    field = (spec.main or MAIN[family][:1]) if full_corpus or family != "ir" else ()
    prefixes = [name and f"{name}/" for name in spec.sets] or [""]
    main = {"field": [prefix + metric for prefix in prefixes for metric in field],
            "paper": [prefix + metric for prefix in prefixes for metric in MAIN[family][1:]]}  # fmt: skip
    return Dataset(task or family, family, labels, **splits, counts={k: n for k, n in counts.items() if n}, main=main)


def in_folder(task, folder):
    """The task with its paths in the folder of all tasks."""

    def at(path):
        return path and str(Path(folder, task.folder, path))

    sets = {name: tuple(map(at, paths)) for name, paths in task.sets.items()}
    files = {split: at(getattr(task, split)) for split in SPLITS}
    return replace(task, folder=str(Path(folder, task.folder)), sets=sets, **files)


def own(family, corpus):
    """A task of one's own, before its settings."""
    dev = f"{corpus}/qrels/dev.tsv"
    sets = {"": (corpus, dev if find(dev) else "", f"{corpus}/qrels/test.tsv")} if corpus else {}
    return Task(family, train=corpus, sets=sets)


def needed(task):
    """The files that must be there, as [(setting, path)]; the path is "" where the setting is."""
    if task.family != "ir":
        return [(split, path) for split in SPLITS if (path := getattr(task, split)) or split != "validation"]
    paths = [] if task.sets else [("corpus", "")]
    beir = [task.train] if is_beir(task.train) else []
    paths.append(("train", f"{task.train}/qrels/train.tsv" if beir else task.train))
    for folder, validation, test in task.sets.values():
        paths += [("corpus", f"{folder}/corpus.jsonl"), ("validation", validation), ("test", test)]
        beir += [folder] if suffix(test) == ".tsv" else []
    paths += [("corpus", f"{folder}/{file}") for folder in beir for file in ("corpus.jsonl", "queries.jsonl")]
    return [(setting, path) for setting, path in dict.fromkeys(paths) if path or setting != "validation"]


def missing(name, task):
    """What is missing and where to get it, as text; "" where nothing is."""
    absent = [path or f"--{setting}" for setting, path in needed(task) if not find(path)]
    if not absent:
        return ""
    lines = [f"{f'task={name}' if name else f'family={task.family}'}: missing:", *absent]
    if name:
        lines.append(f"Get {task.source}; they go into {task.folder}")
    if task.hub:
        lines.append("Or pip install datasets, to have them downloaded.")
    return "\n  ".join(lines)


def is_beir(train):
    """Whether retrieval is trained on the judgements of a folder, and not on a file of pairs."""
    return bool(train) and not train.startswith("hf:") and suffix(train) not in (".json", ".jsonl", ".tsv", ".csv")


# ----------------------------------------------------------------------------
# Splits


KEY = {"sc": "text", "tc": "sentence", "qa": "context", "ir": "query"}  # what is never on both sides of a random split


def keys(family, examples):
    if family == "sc":
        return [example.text for example in examples]
    if family == "tc":
        return [tuple(example.words) for example in examples]
    if family == "qa":
        return [example.context for example in examples]
    if isinstance(examples, list):
        return [pair.query for pair in examples]
    return [text for retrieval in examples.values() for text in retrieval.queries.values()]


def hold_out(examples, keys, fraction):
    """The examples in two lists; the second has `fraction` of the distinct keys, at random and at least one."""
    distinct = list(dict.fromkeys(keys))
    count = max(1, round(fraction * len(distinct)))
    if count >= len(distinct):
        raise DataError(f"{len(distinct)} different examples are too few to hold some of them out: give --validation")
    # RandomState's stream is frozen, unlike the newer generators': the same split under every version of numpy.
    held = {distinct[i] for i in np.random.RandomState(SEED).permutation(len(distinct))[:count]}
    both = list(zip(examples, keys))
    return [example for example, key in both if key not in held], [example for example, key in both if key in held]


def file_splits(task, fraction, counts):
    """The three splits of sc, tc or qa, each a list of examples."""
    splits = {split: read_all(getattr(task, split), task, split, counts) for split in SPLITS}
    if not task.validation:
        train = splits["train"]
        splits["train"], splits["validation"] = hold_out(train, keys(task.family, train), fraction)
        counts[f"validation: held out of train, at random by {KEY[task.family]}"] = len(splits["validation"])
    return splits


def read_all(path, task, split, counts):
    """The examples of all files of a path."""
    read, example = {"sc": (read_texts, Text), "tc": (read_sentences, Sentence), "qa": (read_questions, Question),
                     "ir": (read_pairs, Pair)}[task.family]  # fmt: skip
    found, ruled = [], Counter()
    for file in find(path):
        found += [example(*fields) for fields in read(file, task, split, ruled)]
    if path and not found:
        raise DataError(f"{path}: there are no examples in it")
    counts.update({f"{split}: {rule}": count for rule, count in ruled.items()})
    return found


def retrieval_splits(task, fraction, full_corpus, counts):
    """The pairs to train on, and for validation and test {name of the set: Retrieval}."""
    # Judgements, and the queries that they are about.
    sources = [(name, split, folder, path) for name, (folder, *both) in task.sets.items()
               for split, path in zip(("validation", "test"), both) if path]  # fmt: skip
    if is_beir(task.train):
        sources.append(("", "train", task.train, f"{task.train}/qrels/train.tsv"))
    judged = {}  # {(set, split): {query id: {document id: grade}}}
    queries, named = {}, {}  # {folder: {query id: text}}, {folder: {document id: the judgements that name it}}
    for name, split, folder, path in sources:
        found, asked = read_qrels(find(path)[0])
        if asked:
            queries.setdefault(folder, {}).update(asked)
        elif folder not in queries:
            queries[folder], _ = read_texts_by_id(find(f"{folder}/queries.jsonl")[0])
        if absent := [query for query in found if query not in queries[folder]]:
            raise DataError(f"{path}: {len(absent)} queries in it are not in queries.jsonl, the first is {absent[0]!r}")
        useful = {query: grades for query, grades in found.items() if max(grades.values()) > 0}
        counts[rule(name, f"{split}: queries left out, without a relevant document")] = len(found) - len(useful)
        for grades in useful.values():
            named.setdefault(folder, {}).update(dict.fromkeys(grades, path))
        if not useful:
            raise DataError(f"{path}: no query has a relevant document")
        judged[name, split] = useful

    # Validation, where it has no judgements of its own.
    for name, (folder, validation, _) in task.sets.items():
        if not validation:
            source, share = (("", "train"), fraction) if folder == task.train else ((name, "test"), 0.5)
            grades = judged[source]
            kept, held = hold_out(list(grades), [queries[folder][query] for query in grades], share)
            judged[source] = {query: grades[query] for query in kept}
            judged[name, "validation"] = {query: grades[query] for query in held}
            counts[rule(name, f"validation: queries held out of {source[1]}, at random")] = len(held)

    # Documents.
    tested, documents, sizes = {folder for folder, *_ in task.sets.values()}, {}, {}
    for folder, ids in named.items():
        path = find(f"{folder}/corpus.jsonl")[0]
        everything = full_corpus and folder in tested
        documents[folder], sizes[folder] = read_texts_by_id(path, None if everything else ids)
        if absent := [document for document in ids if document not in documents[folder]]:
            raise DataError(f"{path}: {len(absent)} judged documents are not in it, the first is {absent[0]!r}, of "
                            f"{ids[absent[0]]}")  # fmt: skip

    splits = {"train": [], "validation": {}, "test": {}}
    for name, (folder, *_) in task.sets.items():
        corpus = documents[folder]
        if not full_corpus:
            both = [*judged[name, "validation"].values(), *judged[name, "test"].values()]
            corpus = {document: corpus[document] for grades in both for document in grades}
            counts[rule(name, "corpus: documents left out, as they are not judged")] = sizes[folder] - len(corpus)
        counts[rule(name, "corpus: empty documents")] = sum(not text.strip() for text in corpus.values())
        for split in ("validation", "test"):
            grades = judged[name, split]
            splits[split][name] = Retrieval({query: queries[folder][query] for query in grades}, corpus, grades)
    if is_beir(task.train):
        splits["train"] = [Pair(queries[task.train][query], documents[task.train][document])
                           for query, grades in judged["", "train"].items()
                           for document, grade in grades.items() if grade > 0]  # fmt: skip
    else:
        splits["train"] = read_all(task.train, task, "train", counts)
    return splits


def rule(name, words):
    return f"{name}: {words}" if name else words


def labels_of(task, splits, counts):
    """The labels seen in training, in the order of `task.names` or of the alphabet, "O" first."""
    if task.family not in ("sc", "tc"):
        return []
    of = (lambda example: [example.label]) if task.family == "sc" else (lambda example: example.tags)
    seen = {label for example in splits["train"] for label in of(example)}
    first = {name: place for place, name in enumerate((*task.names, "O"))}
    labels = sorted(seen, key=lambda label: (first.get(label, len(first)), label))
    if len(labels) < 2:
        raise DataError(f"{task.train}: all its examples are {labels[0]!r}: there is nothing to learn")
    for split in ("validation", "test"):
        counts[f"{split}: labels never seen in training"] = sum(l not in seen for e in splits[split] for l in of(e))
    return labels


# ----------------------------------------------------------------------------
# Looking at the data


def table(folder):
    """The list of tasks, as aligned text."""
    lines = [("task", "family", "main metric", f"folder in {folder}", "there")]
    for name, task in TASKS.items():
        paths = [path for _, path in needed(in_folder(task, folder))]
        there = sum(bool(find(path)) for path in paths)
        lines.append((name, task.family, ", ".join(task.main or MAIN[task.family][:1]),
                      task.folder or ", ".join(path for path, *_ in task.sets.values()),
                      "yes" if there == len(paths) else f"{there} of {len(paths)} files"))  # fmt: skip
    for name in EMBEDDED:
        lines.append((name, name[-2:], MAIN[name[-2:]][0], "none: made from Python itself", "yes"))
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def description(dataset):
    """What is in a Dataset, as text: its counts and the first two examples of each split."""
    lines = [f"{dataset.name} ({dataset.family})"]
    if dataset.labels:
        lines.append(f"labels: {', '.join(dataset.labels)}")
    lines += [f"{count:,} {words}" for words, count in dataset.counts.items()]
    for split in SPLITS:
        examples = getattr(dataset, split)
        if isinstance(examples, dict):
            for name, (queries, corpus, qrels) in examples.items():
                lines.append(f"\n{rule(name, split)}: {len(queries):,} queries, {len(corpus):,} documents")
                best = {query: max(qrels[query], key=qrels[query].get) for query in list(queries)[:2]}
                lines += [shown(Pair(queries[query], corpus[document])) for query, document in best.items()]
        else:
            lines += [f"\n{split}: {len(examples):,} examples", *map(shown, examples[:2])]
    return "\n".join(lines)


def shown(example):
    """An example as text, a line for each field, cut where it is long."""
    fields = example._asdict()
    if isinstance(example, Sentence):
        fields = {"words": " ".join(word if tag == "O" else f"{word}/{tag}" for word, tag in zip(*example))}
    return "\n".join(f"  {name:10}{textwrap.shorten(str(value), 160)}" for name, value in fields.items())
