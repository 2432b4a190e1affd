"""Four small real tasks made from the Python installation itself, so that every task family runs with no network.

    embedded-sc   which part of the standard library a docstring comes from                       (classification)
    embedded-tc   which words of a sentence of the language reference are code, and of what kind  (tagging)
    embedded-qa   questions on a list of functions: signatures and summaries                      (answer spans)
    embedded-ir   the summary of a function -> its name, signature and the rest of its docstring  (retrieval)

They are for demonstration and for tests. No person wrote the labels: they follow from the structure of the files, such
as markup, signatures and the module something stands in. A module or topic is on one side only, picked by a hash of
its name, and no text is on two sides. The embedded pretraining corpus is the same text, labels aside: a model
pretrained on it has read the test sentences. The text differs a little from one Python version to the next.
"""

import ast
import functools
import itertools
import keyword
import random
import re
import zlib
from collections import Counter
from typing import NamedTuple

from data import embedded
from errors import DataError
from eval.tasks.examples import Dataset, Pair, Question, Retrieval, Sentence, Text

SIDES = "train", "validation", "test"
SALT = "1018"  # found by trial: it spreads parts, functions and tags evenly over the sides on Python 3.10 to 3.13
LONGEST = 400  # characters of a text: nearly all fit in 128 tokens of the embedded tokenizer


def load(name):
    """The Dataset of an embedded task, the same on every run of the same Python.

    Raises DataError for an unknown name, and where this Python lacks what the task is made from.
    """
    if name not in MAKERS:
        raise DataError(f"{name!r} is no embedded task; there are {', '.join(MAKERS)}")
    dataset = MAKERS[name]()
    dataset.counts = {rule: n for rule, n in dataset.counts.items() if n}
    if not min(len(dataset.train), len(dataset.validation), len(dataset.test)):
        raise DataError(
            f"{name}: this Python carries too little of its {'help topics' if name == 'embedded-tc' else 'source'} "
            "for this task (some distributions strip them): use a full CPython, or a task of your own"
        )
    return dataset


def side(name):
    """Where a module or topic belongs: 70 % train, 10 % validation, 20 % test, by a hash that no version changes."""
    share = zlib.crc32(f"{SALT}{name}".encode()) % 10
    return "train" if share < 7 else "validation" if share < 8 else "test"


# ---------------------------------------------------------------------------------------------------------------------
# What the standard library documents


class Definition(NamedTuple):
    """A documented module, class or function."""

    module: str  # dotted
    names: tuple  # of the classes and functions around it and its own; () for a module
    parameters: list  # of a function: (name, text of the default or ""), self left out; None for others
    text: str  # the docstring in one line, examples left out
    summary: str  # its first sentence, in one line

    @property
    def signature(self):
        return f"({', '.join(name + ('=' + default if default else '') for name, default in self.parameters)})"

    @property
    def line(self):
        """What a list of functions says about this one."""
        return f"{self.names[-1]}{self.signature}: {self.summary}\n"


@functools.lru_cache
def definitions():
    """All Definitions, training modules first."""
    found = []
    for module, tree in embedded.modules():  # one by one: keeping all trees takes four times as long
        for names, node, docstring in embedded.docstrings(tree):
            paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", docstring) if ">>>" not in p]
            if text := " ".join(paragraphs):
                summary = re.match(r".+?[.!?](?= [A-Z\"'`*(]|$)|.+", paragraphs[0])[0]
                found.append(Definition(module, names, parameters(node), text, summary))
    return sorted(found, key=lambda d: SIDES.index(side(d.module)))


def parameters(node):
    """(name, text of the default or "") of each parameter of a function, without self; None for other nodes."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return None
    a = node.args
    positional = [x.arg for x in a.posonlyargs + a.args]
    defaults = [""] * (len(positional) - len(a.defaults)) + [ast.unparse(x) for x in a.defaults]
    bound = positional[:1] in (["self"], ["cls"])
    found = list(zip(positional, defaults))[bound:]
    if len(a.posonlyargs) > bound:
        found.insert(len(a.posonlyargs) - bound, ("/", ""))
    if a.vararg or a.kwonlyargs:
        found.append((f"*{a.vararg.arg if a.vararg else ''}", ""))
    found += [(x.arg, ast.unparse(default) if default else "") for x, default in zip(a.kwonlyargs, a.kw_defaults)]
    if a.kwarg:
        found.append((f"**{a.kwarg.arg}", ""))
    return found


def shortened(text):
    """The first words of a text, LONGEST characters at most."""
    return text if len(text) <= LONGEST else text[: LONGEST + 1].rsplit(" ", 1)[0]


# ---------------------------------------------------------------------------------------------------------------------
# Classification: the part of the library

PARTS = {
    "concurrency": "asyncio concurrent multiprocessing queue sched selectors socketserver subprocess threading",
    "data": "_pyio base64 bz2 codecs configparser csv dbm filecmp fileinput fnmatch genericpath glob gzip io json lzma "
    "ntpath os pathlib pickle pickletools plistlib posixpath shelve shutil sqlite3 tarfile tempfile tomllib xml "
    "zipapp zipfile",
    "gui": "curses idlelib tkinter turtle turtledemo",
    "internet": "cgi email ftplib html http imaplib ipaddress mailbox mimetypes nntplib poplib smtpd smtplib socket "
    "ssl telnetlib urllib webbrowser wsgiref xmlrpc",
    "language": "_collections_abc abc ast code codeop collections compileall contextlib copy dataclasses dis enum "
    "functools imp importlib inspect lib2to3 modulefinder operator pkgutil pyclbr pydoc reprlib runpy symtable "
    "tokenize types typing weakref zipimport",
}
MOST_OF_A_MODULE = 30  # docstrings, or the side of tkinter, which has 500, would decide about its part


def classification():
    part_of = {module: part for part, modules in PARTS.items() for module in modules.split()}
    examples, seen, taken, counts = {s: [] for s in SIDES}, set(), Counter(), Counter()
    for d in definitions():
        part, text = part_of.get(d.module.split(".")[0]), shortened(d.text)
        if not part or len(text) < 40 or text in seen:
            continue
        seen.add(text)
        taken[d.module] += 1
        if taken[d.module] > MOST_OF_A_MODULE:
            counts[f"docstrings beyond the first {MOST_OF_A_MODULE} of their module, left out"] += 1
            continue
        counts[f"docstrings cut at {LONGEST} characters"] += text != d.text
        examples[side(d.module)].append(Text(text, part))
    # Linux distributions package tkinter and IDLE apart: what is left of a part may be too little to learn or test.
    sizes = {s: Counter(x.label for x in examples[s]) for s in SIDES}
    labels = [part for part in PARTS if sizes["train"][part] >= 50 and min(sizes[s][part] for s in SIDES) >= 5]
    for name in SIDES:
        kept = [x for x in examples[name] if x.label in labels]
        counts["docstrings of parts that this Python lacks, left out"] += len(examples[name]) - len(kept)
        examples[name] = kept
    metrics = {"field": ["accuracy"], "paper": ["accuracy"]}
    return Dataset("embedded-sc", "sc", labels, **examples, counts=counts, main=metrics)


# ---------------------------------------------------------------------------------------------------------------------
# Tagging: code in the sentences of the language reference

# The topics are reST turned into plain text: literals stand in quotes, terms and parameters in asterisks.
MARKUP = re.compile(r'"([^"]+)"|\*\*([^*]+)\*\*|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])')
WORD = re.compile(r"\w+(?:[.'’-]\w+)*|[^\w\s]")


def tagging():
    """Tags: KEYWORD of Python; CALL, a function's name, which the text writes as name() (the parentheses are part of
    the markup and go with it); NAME, another identifier; CODE, a longer piece; TERM, a term or parameter."""
    found, counts = {}, Counter()
    topics = embedded.topics()
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        for sentence in sentences(topics[topic]):
            found.setdefault(sentence, topic)  # long topics contain short ones: a sentence is the shortest one's
    examples, seen = {s: [] for s in SIDES}, set()
    for sentence, topic in sorted(found.items(), key=lambda item: SIDES.index(side(item[1]))):
        if sentence.count('"') % 2 or '""' in sentence:
            counts["sentences whose quotes do not pair up, left out"] += 1
            continue
        example = tagged(sentence)
        if (words := " ".join(example.words)) not in seen:
            seen.add(words)
            examples[side(topic)].append(example)
    labels = ["O", *sorted({tag for x in examples["train"] for tag in x.tags} - {"O"})]
    metrics = {"field": ["entity_f1"], "paper": ["sentence_macro_f1"]}
    return Dataset("embedded-tc", "tc", labels, **examples, counts=counts, main=metrics)


def sentences(text):
    """Yield the whole sentences of a topic; not its headings, grammar and examples."""
    for block in re.split(r"\n\s*\n", text):
        block = re.sub(r"^(?:\*|\d+\.) ", "", " ".join(block.split()))
        if "::=" not in block and ">>>" not in block:
            for sentence in re.split(r'(?<=[.!?]) (?=[A-Z"*])', block):
                if re.fullmatch(r'["*“(]*[A-Z].*[.!?:]\)?', sentence) and 5 <= len(sentence.split()) <= 60:
                    yield sentence


def tagged(sentence):
    """The Sentence of a text with markup."""
    words, tags, end = [], [], 0

    def add(text, kind=""):
        pieces = WORD.findall(text)
        words.extend(pieces)
        tags.extend((f"I-{kind}" if i else f"B-{kind}") if kind else "O" for i in range(len(pieces)))

    for match in MARKUP.finditer(sentence):
        add(sentence[end : match.start()])
        end = match.end()
        code, strong, term = match.groups()
        if code is None:
            add(strong or term, "TERM" if term else "")
        elif all(map(keyword.iskeyword, code.split())):
            add(code, "KEYWORD")
        elif all(map(str.isidentifier, code.removesuffix("()").split("."))):
            add(code.removesuffix("()"), "CALL" if code.endswith("()") else "NAME")
        else:
            add(code, "CODE")
    add(sentence[end:])
    return Sentence(words, tags)


# ---------------------------------------------------------------------------------------------------------------------
# Answer spans: questions on a list of functions

LISTING = 300  # characters of most lists, which fit in a window of 128 tokens together with a question
LONG_LISTING = 900  # of every eighth, which does not
VERBS = frozenset(  # what summaries begin with, and what has a third person
    "Add Apply Ask Bind Build Call Change Check Clear Close Compare Compile Compute Configure Connect Construct "
    "Convert Copy Count Create Decode Decrement Delete Determine Disable Display Draw Emit Enable Encode Ensure "
    "Execute Extract Find Flush Format Generate Get Guess Handle Increment Initialize Insert Install Invoke Join "
    "List Load Locate Log Look Make Mark Move Open Override Parse Perform Place Pop Prepare Print Process Produce "
    "Push Put Query Raise Read Receive Register Remove Rename Replace Report Reset Resolve Retrieve Return Round "
    "Run Save Scan Search Select Send Set Show Skip Sort Split Start Stop Store Strip Swap Test Transform Try "
    "Turn Unregister Update Use Wait Walk Wrap Write Yield".split()
)


def answer_spans():
    """Questions on the functions of one module, as a person would ask who wants to use them:

    Which function returns the payload?  its name, asked for with the summary's words, the verb in another form
    Which function takes decode?         its name, asked for with a parameter that no other function of the list has
    What is the default of i in get?     a default that is written once in the list
    What does get return?                the summary's words after "Return", up to the first punctuation
    """
    examples, counts = {s: [] for s in SIDES}, Counter()
    for listing in listings():
        context = "".join(d.line for d in listing).strip()
        found = list(questions(listing, context))
        random.Random(context).shuffle(found)  # the same order on every run
        for kind, (question, first, answer) in sorted({kind: rest for kind, *rest in found}.items()):  # one of a kind
            counts[f"questions for {kind}"] += 1
            name = side(listing[0].module)
            examples[name].append(Question(f"{name}-{len(examples[name])}", question, context, [(answer, first)]))
    metrics = {"field": ["f1"], "paper": ["token_set_f1"]}
    return Dataset("embedded-qa", "qa", [], **examples, counts=counts, main=metrics)


def listings():
    """Yield lists of at least three functions in the order of their module. A name occurs once in a list, a summary
    in one list only."""
    number, told = 0, set()
    for _, module in itertools.groupby(definitions(), key=lambda d: d.module):
        listing, room = [], 0
        for d in module:
            if d.parameters is None or "->" in d.summary or not 10 < len(d.summary) < len(d.line) < LISTING / 2:
                continue
            if d.summary in told:
                continue
            told.add(d.summary)
            if len(d.line) > room or d.names[-1] in [x.names[-1] for x in listing]:
                if len(listing) > 2:
                    yield listing
                    number += 1
                listing, room = [], LISTING if number % 8 < 7 else LONG_LISTING
            listing.append(d)
            room -= len(d.line)
        if len(listing) > 2:
            yield listing
            number += 1


def questions(listing, context):
    """Yield (kind, question, first character of the answer, answer) on a list of functions."""
    taken = Counter(parameter.strip("*") for d in listing for parameter, _ in d.parameters)
    begin = 0  # of the function's line in the context
    for d in listing:
        name = d.names[-1]
        verb, _, rest = d.summary.rstrip(".").partition(" ")
        if verb in VERBS and rest:
            yield "a function by what it does", f"Which function {third_person(verb)} {rest}?", begin, name
        if match := re.match(r"Returns? ((?:[^.,;:()]|\.(?=\w)){8,70})(?=[.,;:(]|$)", d.summary):
            first = begin + d.line.rindex(d.summary) + match.start(1)
            yield "what is returned", f"What does {name} return?", first, match[1].rstrip()
        position = begin + len(name) + 1
        for parameter, default in d.parameters:
            if parameter.isidentifier() and taken[parameter] == 1:
                yield "a function by its parameter", f"Which function takes {parameter}?", begin, name
            if len(default) <= 20 and re.search(r"\d|\w\w", default) and context.count(default) == 1:
                first = position + len(parameter) + 1
                yield "a default", f"What is the default of {parameter} in {name}?", first, default
            position += len(f"{parameter}={default}, " if default else f"{parameter}, ")
        begin += len(d.line)


def third_person(verb):
    """The verb of "Return the list" as in "which returns the list"."""
    verb = verb.lower()
    if verb.endswith(("s", "x", "ch", "sh")):
        return verb + "es"
    return verb[:-1] + "ies" if re.search("[^aeiou]y$", verb) else verb + "s"


# ---------------------------------------------------------------------------------------------------------------------
# Retrieval: summary -> function


def retrieval():
    """The relevant documents of a query are those of all functions with that summary."""
    pairs, counts = {s: [] for s in SIDES}, Counter()
    asked, told = {}, {}  # the side on which a query and a rest of a docstring were met first
    for d in definitions():
        name, rest = side(d.module), d.text[len(d.summary) :].strip()
        if d.parameters is None or len(rest) < 40 or not 3 <= len(d.summary.split()) <= 40 or "->" in d.summary:
            continue
        if {asked.setdefault(d.summary, name), told.setdefault(rest, name)} != {name}:
            counts["functions whose summary or text is also on another side, left out"] += 1
            continue
        document = f"{d.module}.{'.'.join(d.names)}{d.signature} {rest}"
        if d.summary in document:
            counts["functions whose summary is repeated in the document, left out"] += 1
            continue
        counts[f"documents cut at {LONGEST} characters"] += len(document) > LONGEST
        pairs[name].append(Pair(d.summary, shortened(document)))
    validation, test = ({"": retrieval_set(pairs[s])} if pairs[s] else {} for s in SIDES[1:])
    metrics = {"field": ["ndcg@10"], "paper": ["ndcg@10_judged"]}
    return Dataset("embedded-ir", "ir", [], pairs["train"], validation, test, counts, metrics)


def retrieval_set(pairs):
    """The Retrieval of all queries against all documents of these pairs; equal texts are one query or document."""
    queries = {text: f"q{i}" for i, text in enumerate(dict.fromkeys(pair.query for pair in pairs))}
    corpus = {text: f"d{i}" for i, text in enumerate(dict.fromkeys(pair.document for pair in pairs))}
    qrels = {}
    for query, document in pairs:
        qrels.setdefault(queries[query], {})[corpus[document]] = 1
    return Retrieval({i: text for text, i in queries.items()}, {i: text for text, i in corpus.items()}, qrels)


MAKERS = {
    "embedded-sc": classification,
    "embedded-tc": tagging,
    "embedded-qa": answer_spans,
    "embedded-ir": retrieval,
}
