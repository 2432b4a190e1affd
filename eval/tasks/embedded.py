"""Four small tasks made from the Python installation itself, so that every task family runs without a network.

    embedded-sc   which part of the standard library a docstring comes from                       (classification)
    embedded-tc   which words of a sentence of the language reference are code, and of what kind  (tagging)
    embedded-qa   questions about a list of functions: signatures and summaries                   (answer spans)
    embedded-ir   the summary of a function -> its name, signature and the rest of its docstring  (retrieval)

They are for demonstration and for tests. The labels follow from the structure of the files, such as markup, signatures
and module names. Each module or topic belongs to one split, picked by a hash of its name, and no text is in two splits.
A model pretrained on the embedded corpus has read the test sentences, without labels. The text differs a little from
one Python version to the next.
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
from eval.tasks.examples import SPLITS, Pair, Question, Retrieval, Sentence, Text

SALT = "1018"  # found by trial: it spreads parts, functions and tags evenly over the splits on Python 3.10 to 3.13
MAX_CHARS = 400  # characters of a text: nearly all fit in 128 tokens of the embedded tokenizer


def make(name, source=None):
    """Make the {split: examples} of an embedded task, the same in every run of the same Python.

    source: what to make it from, by default what this Python has: a list of Definitions, or for embedded-tc a dict
    {topic: text}. Raises DataError if the source holds too little for the task.
    """
    make_examples, read_source = MAKERS[name]
    splits = {split: [] for split in SPLITS}
    for module_or_topic, example in make_examples(read_source() if source is None else source):
        splits[split_of(module_or_topic)].append(example)
    if not all(splits.values()):
        raise DataError(
            f"{name}: this Python carries too little of its source or help topics for this task (some distributions "
            "strip them): use a full CPython, or a task of your own"
        )
    if name == "embedded-ir":
        splits |= {split: {"": retrieval_set(splits[split])} for split in SPLITS[1:]}
    return splits


def split_of(name):
    """The split of a module or topic: 70 % train, 10 % validation, 20 % test, by a hash that no version changes."""
    bucket = zlib.crc32(f"{SALT}{name}".encode()) % 10
    return "train" if bucket < 7 else "validation" if bucket < 8 else "test"


# ---------------------------------------------------------------------------------------------------------------------
# What the standard library documents


class Definition(NamedTuple):
    """A documented module, class or function."""

    module: str  # dotted name
    names: tuple  # the names of the classes and functions around it, then its own; () for a module
    signature: str  # of a function: its parameters and their defaults, without self; "" for others
    defaults: dict  # of a function: {parameter: source of its default, or ""}
    text: str  # the docstring in one line, without examples
    summary: str  # its first sentence, in one line

    @property
    def line(self):
        """What a list of functions says about this one."""
        return f"{self.names[-1]}{self.signature}: {self.summary}\n"


@functools.lru_cache
def definitions():
    """All Definitions of the standard library, those of training modules first."""
    found = []
    for module, tree in embedded.modules():  # one by one: keeping all trees takes four times as long
        for names, node, docstring in embedded.docstrings(tree):
            paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", docstring) if ">>>" not in p]
            if text := " ".join(paragraphs):
                summary = re.match(r".+?[.!?](?= [A-Z\"'`*(]|$)|.+", paragraphs[0])[0]
                found.append(Definition(module, names, *signature(node), text, summary))
    return sorted(found, key=lambda d: SPLITS.index(split_of(d.module)))


def signature(node):
    """Return a function's parameters as Python writes them, and {name: default}; see Definition."""
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return "", {}
    a = node.args
    for x in ast.walk(a):
        if isinstance(x, ast.arg):
            x.annotation = None
    first = (a.posonlyargs or a.args)[:1]
    if first and first[0].arg in ("self", "cls"):
        del (a.posonlyargs or a.args)[0]
    named = a.posonlyargs + a.args
    defaults = [None] * (len(named) - len(a.defaults)) + a.defaults + a.kw_defaults
    found = {x.arg: ast.unparse(default) if default else "" for x, default in zip(named + a.kwonlyargs, defaults)}
    return f"({ast.unparse(a)})", found | {f"*{x.arg}": "" for x in (a.vararg, a.kwarg) if x}


def shorten(text):
    """The first words of a text, MAX_CHARS characters at most."""
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS + 1].rsplit(" ", 1)[0]


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
MAX_PER_MODULE = 30  # docstrings; else the split of tkinter, which has 500, would decide about its part


def classification(definitions):
    """Yield (module, Text) for embedded-sc."""
    part_of = {module: part for part, modules in PARTS.items() for module in modules.split()}
    seen, taken = set(), Counter()
    for d in definitions:
        part, text = part_of.get(d.module.split(".")[0]), shorten(d.text)
        if not part or len(text) < 40 or text in seen:
            continue
        seen.add(text)
        taken[d.module] += 1
        if taken[d.module] <= MAX_PER_MODULE:
            yield d.module, Text(text, part)


# ---------------------------------------------------------------------------------------------------------------------
# Tagging: code in the sentences of the language reference

# The topics are reST turned into plain text: literals stand in quotes, terms and parameters in asterisks.
MARKUP = re.compile(r'"([^"]+)"|\*\*([^*]+)\*\*|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?![\w*])')
WORD = re.compile(r"\w+(?:[.'’-]\w+)*|[^\w\s]")


def tagging(topics):
    """Yield (topic, Sentence) for embedded-tc. topics: {name: text}.

    Tags: KEYWORD of Python; CALL, a function's name, which the text writes as name() (the parentheses are markup and
    are dropped); NAME, another identifier; CODE, a longer piece; TERM, a term or parameter.
    """
    topic_of = {}
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        for sentence in sentences(topics[topic]):
            topic_of.setdefault(sentence, topic)  # long topics contain short ones: the shortest one has the sentence
    seen = set()
    for sentence, topic in sorted(topic_of.items(), key=lambda item: SPLITS.index(split_of(item[1]))):
        if sentence.count('"') % 2 or '""' in sentence:
            continue  # the quotes do not pair up
        example = tag(sentence)
        if (words := " ".join(example.words)) not in seen:
            seen.add(words)
            yield topic, example


def sentences(text):
    """Yield the whole sentences of a topic, without its headings, grammar and examples."""
    for block in re.split(r"\n\s*\n", text):
        block = re.sub(r"^(?:\*|\d+\.) ", "", " ".join(block.split()))
        if "::=" not in block and ">>>" not in block:
            for sentence in re.split(r'(?<=[.!?]) (?=[A-Z"*])', block):
                if re.fullmatch(r'["*“(]*[A-Z].*[.!?:]\)?', sentence) and 5 <= len(sentence.split()) <= 60:
                    yield sentence


def tag(sentence):
    """Make a Sentence of a text with markup."""
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
# Answer spans: questions about a list of functions

LISTING = 300  # characters of most lists, which fit in a window of 128 tokens together with a question
LONG_LISTING = 900  # characters of every eighth list, which does not fit
VERBS = frozenset(  # verbs that summaries begin with
    "Add Apply Ask Bind Build Call Change Check Clear Close Compare Compile Compute Configure Connect Construct "
    "Convert Copy Count Create Decode Decrement Delete Determine Disable Display Draw Emit Enable Encode Ensure "
    "Execute Extract Find Flush Format Generate Get Guess Handle Increment Initialize Insert Install Invoke Join "
    "List Load Locate Log Look Make Mark Move Open Override Parse Perform Place Pop Prepare Print Process Produce "
    "Push Put Query Raise Read Receive Register Remove Rename Replace Report Reset Resolve Retrieve Return Round "
    "Run Save Scan Search Select Send Set Show Skip Sort Split Start Stop Store Strip Swap Test Transform Try "
    "Turn Unregister Update Use Wait Walk Wrap Write Yield".split()
)


def answer_spans(definitions):
    """Yield (module, Question) for embedded-qa: questions about the functions of one module that a user of them could ask:

    Which function returns the payload?  its name. The question has the words of the summary, the verb in another form
    Which function takes decode?         its name. No other function of the list has this parameter
    What is the default of i in get?     a default that is written once in the list
    What does get return?                the words of the summary after "Return", up to the first punctuation
    """
    numbers = {split: itertools.count() for split in SPLITS}
    for listing in listings(definitions):
        context = "".join(d.line for d in listing).strip()
        found = list(questions(listing, context))
        random.Random(context).shuffle(found)  # the same order in every run
        module, split = listing[0].module, split_of(listing[0].module)
        for _, (question, first, answer) in sorted({kind: rest for kind, *rest in found}.items()):  # one of a kind
            yield module, Question(f"{split}-{next(numbers[split])}", question, context, [(answer, first)])


def listings(definitions):
    """Yield lists of at least three functions of a module. No name is twice in a list, no summary in two lists."""
    listing, room, number, seen = [], 0, 0, set()
    for d in definitions:
        if not d.signature or "->" in d.summary or d.summary in seen:
            continue
        if not 10 < len(d.summary) < len(d.line) < LISTING / 2:
            continue
        seen.add(d.summary)
        same_module = listing and listing[0].module == d.module
        if not same_module or len(d.line) > room or d.names[-1] in [x.names[-1] for x in listing]:
            if len(listing) > 2:
                yield listing
                number += 1
            listing, room = [], LISTING if number % 8 < 7 else LONG_LISTING
        listing.append(d)
        room -= len(d.line)
    if len(listing) > 2:
        yield listing


def questions(listing, context):
    """Yield (kind, question, first character of the answer in the context, answer) about a list of functions."""
    taken = Counter(parameter.strip("*") for d in listing for parameter in d.defaults)
    begin = 0  # first character of the function's line
    for d in listing:
        name = d.names[-1]
        verb, _, rest = d.summary.rstrip(".").partition(" ")
        if verb in VERBS and rest:
            yield "a function by what it does", f"Which function {third_person(verb)} {rest}?", begin, name
        if match := re.match(r"Returns? ((?:[^.,;:()]|\.(?=\w)){8,70})(?=[.,;:(]|$)", d.summary):
            first = begin + d.line.rindex(d.summary) + match.start(1)
            yield "what is returned", f"What does {name} return?", first, match[1].rstrip()
        for parameter, default in d.defaults.items():
            if parameter.isidentifier() and taken[parameter] == 1:
                yield "a function by its parameter", f"Which function takes {parameter}?", begin, name
            if len(default) <= 20 and re.search(r"\d|\w\w", default) and context.count(default) == 1:
                yield "a default", f"What is the default of {parameter} in {name}?", context.index(default), default
        begin += len(d.line)


def third_person(verb):
    """Turn the verb of "Return the list" into that of "which returns the list"."""
    verb = verb.lower()
    if verb.endswith(("s", "x", "ch", "sh")):
        return verb + "es"
    return verb[:-1] + "ies" if re.search("[^aeiou]y$", verb) else verb + "s"


# ---------------------------------------------------------------------------------------------------------------------
# Retrieval: summary -> function


def retrieval(definitions):
    """Yield (module, Pair) for embedded-ir."""
    split_of_query, split_of_rest = {}, {}  # where a query, and the rest of a docstring, occurred first
    for d in definitions:
        split, rest = split_of(d.module), d.text[len(d.summary) :].strip()
        if not d.signature or len(rest) < 40 or not 3 <= len(d.summary.split()) <= 40 or "->" in d.summary:
            continue
        document = f"{d.module}.{'.'.join(d.names)}{d.signature} {rest}"
        on_one_side = {split_of_query.setdefault(d.summary, split), split_of_rest.setdefault(rest, split)} == {split}
        if on_one_side and d.summary not in document:
            yield d.module, Pair(d.summary, shorten(document))


def retrieval_set(pairs):
    """Return the Retrieval of pairs. Equal texts are one query or document, so a query may have several documents."""
    queries = {text: f"q{i}" for i, text in enumerate(dict.fromkeys(pair.query for pair in pairs))}
    corpus = {text: f"d{i}" for i, text in enumerate(dict.fromkeys(pair.document for pair in pairs))}
    qrels = {}
    for query, document in pairs:
        qrels.setdefault(queries[query], {})[corpus[document]] = 1
    return Retrieval({i: text for text, i in queries.items()}, {i: text for text, i in corpus.items()}, qrels)


MAKERS = {  # {name: (from its source to the name that decides the split, and an example; reader of the source)}
    "embedded-sc": (classification, definitions),
    "embedded-tc": (tagging, embedded.topics),
    "embedded-qa": (answer_spans, definitions),
    "embedded-ir": (retrieval, definitions),
}
