"""The embedded tasks: nothing leaks from one side to another, labels are what the files say, every run the same."""
import ast
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from hashlib import sha256

import pytest

from helpers import ROOT
sys.path.insert(0, str(ROOT))
from data.tokenizer import Tokenizer
from errors import DataError
from eval.tasks import embedded
from eval.tasks.metrics import normalise

SIDES = "train", "validation", "test"


@pytest.fixture(scope="module")
def tasks():
    return {name: embedded.load(name) for name in embedded.MAKERS}


def by_side(dataset):
    """{side: examples}; of retrieval sets the pairs of query and relevant document."""
    sides = {side: getattr(dataset, side) for side in SIDES}
    if dataset.family == "ir":
        for side in SIDES[1:]:
            queries, documents, qrels = sides[side][""]
            sides[side] = [(queries[q], documents[d]) for q, grades in qrels.items() for d in grades]
    return sides


def assert_disjoint(dataset, parts):
    """No part of an example, as `parts` lists them, is on two sides."""
    sides = {side: {part for x in examples for part in parts(x)} for side, examples in by_side(dataset).items()}
    assert all(sides.values())
    for one, other in ("train", "test"), ("train", "validation"), ("validation", "test"):
        assert not sides[one] & sides[other], f"{dataset.name}, {one} and {other}"


def lines(question):
    """{name: (parameters as written, summary)} of the functions that a question's context lists."""
    found = dict(re.findall(r"^(\w+)(\(.*?\): .+)", question.context, re.MULTILINE))
    assert len(found) == question.context.count("\n") + 1 >= 3
    return {name: (text[1:].partition("): ")[0], text.partition("): ")[2]) for name, text in found.items()}


@pytest.mark.parametrize("name", embedded.MAKERS)
def test_sizes(tasks, name):
    sizes = {side: len(examples) for side, examples in by_side(tasks[name]).items()}
    assert 1000 <= sizes["train"] <= 4000 and 50 <= sizes["validation"] and 250 <= sizes["test"] <= 1000, sizes
    assert tasks[name].name == name and all(type(count) is int for count in tasks[name].counts.values())


def test_no_text_on_two_sides(tasks):
    assert_disjoint(tasks["embedded-sc"], lambda x: [x.text])
    assert_disjoint(tasks["embedded-tc"], lambda x: [" ".join(x.words)])
    assert_disjoint(tasks["embedded-qa"], lambda x: [summary for _, summary in lines(x).values()])
    assert_disjoint(tasks["embedded-ir"], lambda x: ["query " + x[0], "document " + x[1].partition(") ")[2]])


def test_a_sentence_in_several_topics_is_the_shortest_ones(monkeypatch):
    """Even if it is marked up differently in a training topic, which comes first."""
    train, test = (next(name for name in map(str, range(99)) if embedded.side(name) == s) for s in ("train", "test"))
    one, two, three = "Use a *list* of files.", "This is in both topics.", "Only the long one has this."
    monkeypatch.setattr(embedded.embedded, "topics", lambda: {train: f"{one} {two} {three}", test: two})
    dataset = embedded.tagging()
    assert [x.words[0] for x in dataset.train] == ["Use", "Only"] and [x.words[0] for x in dataset.test] == ["This"]
    monkeypatch.setattr(embedded.embedded, "topics", lambda: {train: f"{one} {three}", test: one.replace("*", '"')})
    dataset = embedded.tagging()
    assert dataset.train[0].tags[2] == "B-TERM" and dataset.test == []


def test_no_module_on_two_sides(tasks):
    """By the modules that the texts stand in. A text that stands in several belongs to training if one of them does."""
    modules = defaultdict(set)
    for d in embedded.definitions():
        for text in [embedded.shortened(d.text)] + ([d.line.strip()] if d.parameters is not None else []):
            modules[text].add(d.module)

    for name, texts in ("embedded-sc", lambda x: [x.text]), ("embedded-qa", lambda x: x.context.split("\n")):
        assert_disjoint(tasks[name], lambda x: [m for t in texts(x) if len(modules[t]) == 1 for m in modules[t]])
        found = {module for x in tasks[name].test for text in texts(x) for module in modules[text]}
        assert "train" not in map(embedded.side, found)
    names = {d.module + "." + ".".join(d.names): d.module for d in embedded.definitions()}
    assert_disjoint(tasks["embedded-ir"], lambda x: [names[x[1].partition("(")[0]]])


def test_the_same_in_every_process(tasks):
    code = "from eval.tasks import embedded; from hashlib import sha256; " \
           "print(sha256(repr([embedded.load(name) for name in embedded.MAKERS]).encode()).hexdigest())"  # fmt: skip
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has one at random
    other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == sha256(repr([*tasks.values()]).encode()).hexdigest(), other.stderr


def test_classes(tasks):
    dataset = tasks["embedded-sc"]
    for side, examples in by_side(dataset).items():
        shares = {label: n / len(examples) for label, n in Counter(x.label for x in examples).items()}
        print(side, shares)
        assert set(shares) == set(dataset.labels) and len(shares) >= 4 and max(shares.values()) < 0.5
    assert min(len(x.text) for x in dataset.train) >= 40 and max(len(x.text) for x in dataset.train) <= embedded.LONGEST


def test_a_part_that_is_not_installed_is_left_out(tasks, monkeypatch):
    """As on Linux distributions that package tkinter apart."""
    kept = [d for d in embedded.definitions() if not d.module.startswith(("tkinter", "idlelib"))]
    monkeypatch.setattr(embedded, "definitions", lambda: kept)
    less, whole = embedded.load("embedded-sc"), tasks["embedded-sc"]
    assert less.labels == [label for label in whole.labels if label != "gui"]
    assert {x.label for x in less.train + less.validation + less.test} == set(less.labels)
    assert less.counts["docstrings of parts that this Python lacks, left out"] > 0


def test_tags(tasks):
    dataset = tasks["embedded-tc"]
    assert dataset.labels[0] == "O" and len(dataset.labels) == len(set(dataset.labels))
    count = Counter()
    for side, examples in by_side(dataset).items():
        for words, tags in examples:
            assert len(words) == len(tags) >= 4
            for before, tag in zip(["O", *tags], tags):
                assert not tag.startswith("I-") or before[2:] == tag[2:]
            count.update((side, tag[2:]) for tag in tags if tag[0] == "B")
            assert not any('"' in word or word != word.strip() or not word for word in words)
    print(count)
    kinds = {tag[2:] for tag in dataset.labels[1:]}
    assert kinds == {"CALL", "CODE", "KEYWORD", "NAME", "TERM"} and all(count["test", kind] >= 20 for kind in kinds)


def test_markup_becomes_tags():
    words, tags = embedded.tagged(
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


def definition(source):
    node = ast.parse(source).body[0]
    return embedded.Definition("m", (node.name,), embedded.parameters(node), "", "")


@pytest.mark.parametrize("source, signature", [
    ("def f(): pass", "()"),
    ("def f(self, /, *args, **kw): pass", "(*args, **kw)"),
    ("def f(cls, a, /, b=-1, *, c, d='x'): pass", "(a, /, b=-1, *, c, d='x')"),
    ("async def f(a: int, b: str = 'y' * 2, *c): pass", "(a, b='y' * 2, *c)"),
])  # fmt: skip
def test_signatures(source, signature):
    assert definition(source).signature == signature


def test_answers_are_where_they_say(tasks):
    kinds = Counter()
    ids = [x.id for examples in by_side(tasks["embedded-qa"]).values() for x in examples]
    assert len(ids) == len(set(ids))
    for x in [x for examples in by_side(tasks["embedded-qa"]).values() for x in examples]:
        ((answer, start),) = x.answers
        assert x.context[start : start + len(answer)] == answer and normalise(answer)
        functions = lines(x)
        if match := re.fullmatch(r"Which function takes (\w+)\?", x.question):
            kinds["parameter"] += 1
            asked = rf"(^|, ){match[1]}(=|, |$)"
            assert [name for name, (given, _) in functions.items() if re.search(asked, given)] == [answer]
            assert ("\n" + x.context)[start] == "\n"  # the answer is the name, at the beginning of a line
        elif match := re.fullmatch(r"What is the default of (\w+) in (\w+)\?", x.question):
            kinds["default"] += 1
            assert f"{match[1]}={answer}" in functions[match[2]][0] and x.context.count(answer) == 1
        elif match := re.fullmatch(r"What does (\w+) return\?", x.question):
            kinds["returned"] += 1
            assert re.match(rf"Returns? {re.escape(answer)}", functions[match[1]][1])
        else:
            kinds["what it does"] += 1
            verb, _, rest = x.question.removeprefix("Which function ").rstrip("?").partition(" ")
            summary = functions[answer][1]
            imperative, _, same = summary.rstrip(".").partition(" ")
            assert rest == same and verb != imperative.lower() and verb[:2] == imperative[:2].lower()
            assert ("\n" + x.context)[start] == "\n"
    print(kinds)
    assert min(kinds.values()) >= 100 and len(kinds) == 4


def test_third_person():
    verbs = {"Return": "returns", "Push": "pushes", "Process": "processes", "Copy": "copies", "Display": "displays"}
    assert {verb: embedded.third_person(verb) for verb in verbs} == verbs
    assert set(verbs) <= embedded.VERBS


def test_most_questions_fit_in_the_window_of_the_demo(tasks):
    """And some do not, so that long contexts are met on the way."""
    tokenizer = Tokenizer.load("embedded")
    texts = [f"Question: {x.question}\nContext: {x.context}" for x in tasks["embedded-qa"].test]
    long = sum(len(tokenizer.encode(text)) >= 128 for text in texts) / len(texts)
    assert 0.05 < long < 0.3


def test_retrieval_sets(tasks):
    for sets in tasks["embedded-ir"].validation, tasks["embedded-ir"].test:
        ((name, (queries, corpus, qrels)),) = sets.items()
        assert name == "" and set(qrels) == set(queries)
        assert {document for grades in qrels.values() for document in grades} == set(corpus)
        for query, grades in qrels.items():
            assert set(grades.values()) == {1}
            assert not any(queries[query] in corpus[document] for document in grades)
        assert len(set(queries.values())) == len(queries) and len(set(corpus.values())) == len(corpus)
        assert max(map(len, corpus.values())) <= embedded.LONGEST


def test_a_summary_of_two_functions_is_one_query():
    Pair = embedded.Pair
    queries, corpus, qrels = embedded.retrieval_set([Pair("Close it.", "a()"), Pair("Open it.", "b()"),
                                                     Pair("Close it.", "c()"), Pair("Shut it.", "a()")])  # fmt: skip
    found = {queries[q]: {corpus[d] for d in grades} for q, grades in qrels.items()}
    assert found == {"Close it.": {"a()", "c()"}, "Open it.": {"b()"}, "Shut it.": {"a()"}}
    assert len(corpus) == 3


def test_a_python_without_the_texts(monkeypatch):
    monkeypatch.setattr(embedded.embedded, "topics", dict)
    with pytest.raises(DataError, match="embedded-tc: this Python carries too little of its help topics.*full CPython"):
        embedded.load("embedded-tc")
    monkeypatch.setattr(embedded, "definitions", list)
    for name in "embedded-sc", "embedded-qa", "embedded-ir":
        with pytest.raises(DataError, match=f"{name}: this Python carries too little of its source.*full CPython"):
            embedded.load(name)
    with pytest.raises(DataError, match="'embedded-xx' is no embedded task; there are embedded-sc, .*embedded-ir"):
        embedded.load("embedded-xx")
