"""The embedded tasks: no text in two splits, labels that are what the files say, the same in every run."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import combinations

import pytest

from errors import DataError
from eval.tasks import embedded
from eval.tasks.examples import Pair
from eval.tasks.metrics import normalize_answer
from eval.tasks.splits import load
from helpers import ROOT

SPLITS = "train", "validation", "test"


@pytest.fixture(scope="module")
def tasks():
    return {name: load(name) for name in embedded.MAKERS}


def by_split(dataset):
    """{split: examples}; of retrieval sets the pairs of query and relevant document."""
    splits = {split: getattr(dataset, split) for split in SPLITS}
    if dataset.family == "ir":
        for split in SPLITS[1:]:
            queries, documents, qrels = splits[split][""]
            splits[split] = [(queries[q], documents[d]) for q, grades in qrels.items() for d in grades]
    return splits


def assert_disjoint(dataset, parts):
    """No part of an example, as `parts` lists them, is in two splits."""
    splits = {split: {part for x in examples for part in parts(x)} for split, examples in by_split(dataset).items()}
    assert all(splits.values())
    for one, other in combinations(SPLITS, 2):
        assert not splits[one] & splits[other], f"{dataset.name}, {one} and {other}"


def functions(question):
    """{name: (parameters as written, summary)} of the functions that a question's context lists."""
    found = dict(re.findall(r"^(\w+)(\(.*?\): .+)", question.context, re.MULTILINE))
    assert len(found) == question.context.count("\n") + 1 >= 3
    return {name: (text[1:].partition("): ")[0], text.partition("): ")[2]) for name, text in found.items()}


# -----------------------------------------------------------------------------
# All four


@pytest.mark.slow
def test_sizes_and_classes(tasks):
    for dataset in tasks.values():
        sizes = {split: len(examples) for split, examples in by_split(dataset).items()}
        assert 1000 <= sizes["train"] <= 4000 and 50 <= sizes["validation"] and 250 <= sizes["test"] <= 1000, sizes
    for examples in by_split(tasks["embedded-sc"]).values():
        count = Counter(x.label for x in examples)
        assert set(count) <= set(tasks["embedded-sc"].labels) and len(count) >= 4
        assert max(count.values()) < len(examples) / 2, count
        assert all(40 <= len(x.text) <= embedded.MAX_CHARS for x in examples)


@pytest.mark.slow
def test_no_text_is_in_two_splits(tasks):
    assert_disjoint(tasks["embedded-sc"], lambda x: [x.text])
    assert_disjoint(tasks["embedded-tc"], lambda x: [" ".join(x.words)])
    assert_disjoint(tasks["embedded-qa"], lambda x: [summary for _, summary in functions(x).values()])
    assert_disjoint(tasks["embedded-ir"], lambda x: ["query " + x[0], "document " + x[1].partition(") ")[2]])
    assert not any(query in document for query, document in by_split(tasks["embedded-ir"])["test"])


@pytest.mark.slow
def test_no_module_is_in_two_splits(tasks):
    module_of = {f"{d.module}.{'.'.join(d.names)}": d.module for d in embedded.definitions()}
    assert_disjoint(tasks["embedded-ir"], lambda x: [module_of[x[1].partition("(")[0]]])
    # A text that several modules have belongs to training if one of them does.
    texts = {embedded.shorten(d.text) for d in embedded.definitions() if embedded.split_of(d.module) == "train"}
    assert not texts & {x.text for x in tasks["embedded-sc"].test}


@pytest.mark.slow
def test_the_same_in_every_process(tasks):
    code = "from eval.tasks import embedded; print([embedded.make(name) for name in embedded.MAKERS])"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has one at random
    other = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    assert other.strip() == repr([{split: getattr(task, split) for split in SPLITS} for task in tasks.values()])


@pytest.mark.parametrize("name, source", [("embedded-sc", []), ("embedded-tc", {}), ("embedded-ir", [])])
def test_a_python_without_the_texts(name, source):
    with pytest.raises(DataError, match=f"{name}: this Python carries too little of its source.*full CPython"):
        embedded.make(name, source)


# -----------------------------------------------------------------------------
# Tagging


def test_tags():
    dataset = load("embedded-tc")
    for words, tags in dataset.train + dataset.test:
        assert len(words) == len(tags) >= 4
        assert all(not tag.startswith("I-") or before[2:] == tag[2:] for before, tag in zip(["O", *tags], tags))
        assert not any('"' in word or word != word.strip() or not word for word in words)
    count = Counter(tag for x in dataset.test for tag in x.tags)
    assert dataset.labels[0] == "O"
    assert all(count[f"B-{kind}"] >= 20 for kind in ("CALL", "CODE", "KEYWORD", "NAME", "TERM")), count


def test_a_sentence_of_several_topics_belongs_to_the_shortest():
    """But to training if a training topic has it with other markup."""
    train, test = (next(name for name in map(str, range(99)) if embedded.split_of(name) == s) for s in SPLITS[::2])
    one, two, three = "Use a *list* of files.", "This is in both topics.", "Only the long one has this."
    found = embedded.tagging({train: f"{one} {two} {three}", test: two})
    assert [(topic, x.words[0]) for topic, x in found] == [(train, "Use"), (train, "Only"), (test, "This")]
    found = [*embedded.tagging({train: f"{one} {three}", test: one.replace("*", '"')})]
    assert found[0][1].tags[2] == "B-TERM" and [topic for topic, _ in found] == [train, train]


def test_markup_becomes_tags():
    words, tags = embedded.tag(
        'In **PEP 8**, the "async with" statement calls "__exit__()" of the *context manager*; see "a = b" and '
        '"sys.path", "None".'
    )
    assert " ".join(f"{word}/{tag}" if tag != "O" else word for word, tag in zip(words, tags)) == (
        "In PEP 8 , the async/B-KEYWORD with/I-KEYWORD statement calls __exit__/B-CALL of the context/B-TERM "
        "manager/I-TERM ; see a/B-CODE =/I-CODE b/I-CODE and sys.path/B-NAME , None/B-KEYWORD ."
    )


def test_sentences_without_headings_grammar_and_examples():
    text = (
        'The "if" statement\n\n   if_stmt ::= "if" expression\n\nIt is used for conditional execution, see "if x". It\n'
        "selects exactly one of the suites:\n\n   >>> if x:\n   ...     pass\n\n* Too short.\n\n1. A point is one, too."
    )
    assert list(embedded.sentences(text)) == [
        'It is used for conditional execution, see "if x".',
        "It selects exactly one of the suites:",
        "A point is one, too.",
    ]


# -----------------------------------------------------------------------------
# Questions and retrieval


@pytest.mark.parametrize(
    "source, signature, defaults",
    [
        ("def f(): pass", "()", {}),
        ("def f(self, /, *args, **kw): pass", "(*args, **kw)", {"*args": "", "*kw": ""}),
        ("def f(cls, a, /, b=-1, *, c, d='x'): pass", "(a, /, b=-1, *, c, d='x')", dict(a="", b="-1", c="", d="'x'")),
        ("async def f(a: int, b: str = 'y' * 2): pass", "(a, b='y' * 2)", dict(a="", b="'y' * 2")),
        ("class f: pass", "", {}),
    ],
)
def test_signatures(source, signature, defaults):
    assert embedded.signature(ast.parse(source).body[0]) == (signature, defaults)


@pytest.mark.slow
def test_answers_are_where_they_say(tasks):
    kinds, questions = Counter(), [x for examples in by_split(tasks["embedded-qa"]).values() for x in examples]
    assert len(questions) == len({x.id for x in questions})
    for x in questions:
        ((answer, start),) = x.answers
        assert x.context[start : start + len(answer)] == answer and normalize_answer(answer)
        listed = functions(x)
        if match := re.fullmatch(r"Which function takes (\w+)\?", x.question):
            kinds["parameter"] += 1
            asked = rf"(^|, ){match[1]}(=|, |$)"
            assert [name for name, (given, _) in listed.items() if re.search(asked, given)] == [answer]
            assert ("\n" + x.context)[start] == "\n"  # the answer is the name, at the beginning of a line
        elif match := re.fullmatch(r"What is the default of (\w+) in (\w+)\?", x.question):
            kinds["default"] += 1
            assert f"{match[1]}={answer}" in listed[match[2]][0] and x.context.count(answer) == 1
        elif match := re.fullmatch(r"What does (\w+) return\?", x.question):
            kinds["returned"] += 1
            assert re.match(rf"Returns? {re.escape(answer)}", listed[match[1]][1])
        else:
            kinds["what it does"] += 1
            verb, _, rest = x.question.removeprefix("Which function ").rstrip("?").partition(" ")
            imperative, _, same = listed[answer][1].rstrip(".").partition(" ")
            assert rest == same and verb != imperative.lower() and verb[:2] == imperative[:2].lower()
            assert ("\n" + x.context)[start] == "\n"
    assert min(kinds.values()) >= 100 and len(kinds) == 4, kinds


def test_a_summary_of_two_functions_is_one_query():
    pairs = [("Close it.", "a()"), ("Open it.", "b()"), ("Close it.", "c()"), ("Shut it.", "a()")]
    queries, corpus, qrels = embedded.retrieval_set([Pair(*pair) for pair in pairs])
    found = {queries[q]: {corpus[d] for d in grades} for q, grades in qrels.items()}
    assert found == {"Close it.": {"a()", "c()"}, "Open it.": {"b()"}, "Shut it.": {"a()"}}
    assert len(corpus) == 3
