"""eval/tasks.py and eval/readers.py: each format, each declared data set in miniature, each fault in a file."""

import gzip
import json
import random
import sys
import types
from collections import Counter
from importlib.machinery import ModuleSpec

import pytest

from errors import DataError
from eval import tasks
from eval.tasks.readers import conll_sentences, read_texts_by_id, to_bio
from eval.tasks import TASKS, Dataset, Pair, Question, Sentence, Text, load


@pytest.fixture
def put(tmp_path):
    """put(name, content) writes a file below tmp_path and returns its path as a string; lists become JSON lines."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps(record) + "\n" for record in content)
        elif isinstance(content, dict):
            content = json.dumps(content, indent=1)
        data = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


def squad(*contexts):
    """A file in SQuAD's layout, of (context, [(id, question, [(answer, start), ...]), ...])."""
    paragraphs = [
        {"context": context, "qas": [{"id": i, "question": question, "is_impossible": not answers,
                                      "answers": [{"text": text, "answer_start": start} for text, start in answers]}
                                     for i, question, answers in questions]}
        for context, questions in contexts
    ]  # fmt: skip
    return {"version": "2.0", "data": [{"title": "T", "paragraphs": paragraphs}]}


def paris(n, first=0):
    """n contexts with a question each."""
    return squad(*((f"Town {i} is big.", [(f"q{i}", "Which?", [(f"Town {i}", 0)])]) for i in range(first, first + n)))


def beir(put, folder, train=0, dev=0, test=2, gz=""):
    """A BEIR folder in which query q<n> is answered by document d<n>; the judgements' numbers follow each other."""
    n = train + dev + test
    put(
        f"{folder}/corpus.jsonl{gz}",
        [{"_id": f"d{i}", "title": f"Title {i}", "text": f"text {i}"} for i in range(n + 5)],
    )
    put(f"{folder}/queries.jsonl{gz}", [{"_id": f"q{i}", "text": f"query {i}", "metadata": {}} for i in range(n)])
    first = 0
    for split, size in (("train", train), ("dev", dev), ("test", test)):
        if size:
            lines = [f"q{i}\td{i}\t1\n" for i in range(first, first + size)]
            put(f"{folder}/qrels/{split}.tsv{gz}", "query-id\tcorpus-id\tscore\n" + "".join(lines))
        first += size


def tsv(header, *rows):
    return "\n".join("\t".join(row) for row in (header, *rows)) + "\n"


# ----------------------------------------------------------------------------
# The declared data sets, each as a miniature of its official files


def sst2(put):
    put("sst2/train.tsv", "sentence\tlabel\n" + "".join(f'a "film {i} \t{i % 2}\n' for i in range(20)))
    put("sst2/dev.tsv", "sentence\tlabel\n\"it 's good \t1\n")
    return Text("\"it 's good ", "positive"), 20, ["negative", "positive"]


def qqp(put):
    header = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
    put("qqp/train.tsv", tsv(header, *((str(i), "1", "2", f"A {i}?", "B?", str(i % 2)) for i in range(20))))
    put("qqp/dev.tsv", tsv(header, ("9", "1", "2", "What {is} it?", "Which?", "1")))
    return Text("Question 1: What {is} it?\nQuestion 2: Which?", "duplicate"), 20, ["not_duplicate", "duplicate"]


def mnli(put):
    names = ("entailment", "neutral", "contradiction")
    train = (
        *("index", "promptID", "pairID", "genre"),
        "sentence1_binary_parse",
        "sentence1",
        "sentence2",
        "label1",
        "gold_label",
    )
    dev = (*train[:-1], "label2", "gold_label")
    rows = ((str(i), "1", "1n", "fiction", "( x )", f"P {i}", "H", names[i % 3], names[i % 3]) for i in range(21))
    put("mnli/train.tsv", tsv(train, *rows))
    put(
        "mnli/dev_matched.tsv",
        tsv(dev, ("0", "1", "1n", "fiction", "( x )", "P.", "H.", "neutral", "neutral", "entailment")),
    )
    return Text("Premise: P.\nHypothesis: H.", "entailment"), 21, ["contradiction", "entailment", "neutral"]


def conll2003(put):
    text = "-DOCSTART- -X- -X- O\n\nU.N. NNP I-NP I-ORG\nofficial NN I-NP O\n\n"
    for name in ("eng.train", "eng.testa", "eng.testb"):
        put(f"conll2003/{name}", text + "Japan NNP I-NP I-LOC\nChina NNP I-NP B-LOC\n")
    return Sentence(["U.N.", "official"], ["B-ORG", "O"]), 2, ["O", "B-LOC", "B-ORG"]


def ontonotes(put):
    columns = "bc/x 0 {} {} NNP (TOP* - - - Anchor {} (A0*) -\n"
    words = [("Mary", "(PERSON*"), ("Jo", "*)"), ("of", "*"), ("Rome", "(GPE)"), ("#", "*")]
    body = "".join(columns.format(i, word, tag) for i, (word, tag) in enumerate(words))
    text = f"#begin document (bc/x/00/x_0000); part 000\n{body}\n{body}\n#end document\n"
    for split in ("train", "development", "test"):
        put(f"ontonotes/{split}/data/english/annotations/bc/x/00/x_0000.v4_gold_conll", text)
        put(f"ontonotes/{split}/data/english/annotations/pt/nt/41/nt_4101.v4_gold_conll", text)
        put(f"ontonotes/{split}/data/chinese/annotations/bc/x/00/x_0000.v4_gold_conll", text)
    return (Sentence([word for word, _ in words], ["B-PERSON", "I-PERSON", "O", "B-GPE", "O"]), 2,
            ["O", "B-GPE", "B-PERSON", "I-PERSON"])  # fmt: skip


def uner(put):
    text = "# newdoc id = x\n# sent_id = x-1\n# text = # Iranian Ann Lee\n"
    text += "1\t#\tO\n2\tIranian\tB-OTH\t-\tme\n3\tAnn\tB-PER\t-\tme\n4\tLee\tI-PER\t-\tme\n"
    for split in ("train", "dev", "test"):
        put(f"uner/en_ewt-ud-{split}.iob2", text + "\n" + text)
    return Sentence(["#", "Iranian", "Ann", "Lee"], ["O", "O", "B-PER", "I-PER"]), 2, ["O", "B-PER", "I-PER"]


def wnut17(put):
    put("wnut17/wnut17train.conll", "ESB\tB-location\n.\tO\n\t\n#\tO\nfoo\tO\n\t\n")
    put("wnut17/emerging.dev.conll", "Redondo\tB-location\nBeach\tI-location\n")
    put("wnut17/emerging.test.annotated", "Ann\tB-location\nb\tO\n")
    return Sentence(["Ann", "b"], ["B-location", "O"]), 2, ["O", "B-location"]


def squad_files(folder, version):
    def write(put):
        put(f"{folder}/train-{version}.json", paris(20))
        put(f"{folder}/dev-{version}.json", squad(("In Rome.", [("x", "Where?", [("Rome", 3), ("In Rome", 0)])])))
        return Question("x", "Where?", "In Rome.", [("Rome", 3), ("In Rome", 0)]), 20, []

    return write


def record(put):
    def article(i):
        text = f"Ann {i} met Bob.\n@highlight\nAnn {i} left"
        qa = {"id": f"r{i}", "query": "@placeholder met Bob",
              "answers": [{"start": start, "end": start + 4, "text": f"Ann {i}"} for start in (0, 26)]}  # fmt: skip
        return {
            "id": f"a{i}",
            "source": "s",
            "passage": {"text": text, "entities": [{"start": 0, "end": 4}]},
            "qas": [qa],
        }

    put("record/train.json", {"version": "1", "data": [article(i) for i in range(9)]})
    put("record/dev.json", {"version": "1", "data": [article(9)]})
    text = "Ann 9 met Bob.\n@highlight\nAnn 9 left"
    return Question("r9", "@placeholder met Bob", text, [("Ann 9", 0), ("Ann 9", 26)]), 9, []


def msmarco(put):
    beir(put, "nq_beir", test=8)
    beir(put, "msmarco_beir", train=30, dev=4, test=2, gz=".gz")
    put("mldr_en/corpus.jsonl.gz", [{"docid": f"doc-{i}", "text": f"long text {i}"} for i in range(9)])
    for first, split in ((0, "dev"), (3, "test")):
        answers = {i: [{"docid": f"doc-{i}", "text": "x"}] for i in range(first, first + 3)}
        queries = [{"query_id": f"q-{i}", "query": f"long query {i}", "positive_passages": answers[i],
                    "negative_passages": []} for i in answers]  # fmt: skip
        put(f"mldr_en/{split}.jsonl.gz", queries)
    return Pair("query 0", "Title 0 text 0"), 30, []


def scifact(put):
    beir(put, "scifact_beir", train=20, test=3)
    return Pair("query 0", "Title 0 text 0"), 20, []


MINIATURES = {"sst2": sst2, "qqp": qqp, "mnli": mnli, "conll2003": conll2003, "ontonotes": ontonotes, "uner": uner,
              "wnut17": wnut17, "squad": squad_files("squad_v1.1", "v1.1"), "squad_v2": squad_files("squad_v2", "v2.0"),
              "record": record, "msmarco": msmarco, "scifact": scifact}  # fmt: skip


@pytest.mark.parametrize("name", TASKS)
def test_declared_data_set(put, tmp_path, name):
    first, trained_on, labels = MINIATURES[name](put)
    data = load(name, folder=tmp_path)
    assert (data.name, data.family, data.labels) == (name, TASKS[name].family, labels)
    if data.family == "ir":
        assert first in data.train or first.query in str(data.validation)
        assert all(pair.query.split()[-1] == pair.document.split()[-1] for pair in data.train)
    else:
        assert data.test[0] == first
    if data.family in ("sc", "qa") or name == "scifact":  # 5 % is held out: of twenty, one
        held = data.validation[""].queries if name == "scifact" else data.validation
        assert (len(data.train), len(held)) == (trained_on - 1, 1)
    else:
        assert len(data.train) == trained_on


def test_main_metrics(put, tmp_path):
    for name in ("qqp", "wnut17", "msmarco"):
        MINIATURES[name](put)
    assert load("qqp", folder=tmp_path).main == {"field": ["f1"], "paper": ["accuracy"]}
    assert load("wnut17", folder=tmp_path).main == {"field": ["entity_f1"], "paper": ["sentence_macro_f1"]}
    assert load("msmarco", folder=tmp_path).main == {
        "field": ["nq/ndcg@10", "msmarco/ndcg@10", "mldr/ndcg@10"],
        "paper": ["nq/ndcg@10_judged", "msmarco/ndcg@10_judged", "mldr/ndcg@10_judged"],
    }


def test_splits_of_the_retrieval_sets(put, tmp_path):
    msmarco(put)
    data = load("msmarco", folder=tmp_path)
    sizes = {name: (len(data.validation[name].queries), len(data.test[name].queries)) for name in data.test}
    assert sizes == {"nq": (4, 4), "msmarco": (4, 2), "mldr": (3, 3)}
    assert not set(data.validation["nq"].queries) & set(data.test["nq"].queries)
    assert data.counts["nq: validation: queries held out of test, at random"] == 4
    assert data.test["msmarco"].qrels == {"q34": {"d34": 1}, "q35": {"d35": 1}}
    assert data.test["mldr"].corpus["doc-3"] == "long text 3" and len(data.test["mldr"].corpus) == 9


# ----------------------------------------------------------------------------
# Tables


def own(put, train, test, name="csv", **settings):
    return load(family="sc", train=put(f"train.{name}", train), test=put(f"test.{name}", test), **settings)


def test_csv_is_quoted_and_tsv_is_not(put):
    body = "".join(f'"a, {i}\nb",{i % 2}\n' for i in range(9))
    data = own(put, "text,label\n" + body, 'text,label\n"say ""x""",1\n', validation_fraction=0.3)
    assert data.test == [Text('say "x"', "1")] and data.train[0].text.startswith("a, ") and "\nb" in data.train[0].text
    data = own(put, 'text\tlabel\n"a\t0\nb"\t1\n', 'text\tlabel\r\n"\t1\r\n', "tsv", validation=put("v.csv", GOOD))
    assert data.test == [Text('"', "1")] and data.train == [Text('"a', "0"), Text('b"', "1")]


def test_jsonl_labels_may_be_numbers_and_a_form_joins_columns(put):
    train = [{"a": f"{{x}} {i}", "b": "y", "kind": i % 3} for i in range(9)]
    settings = dict(columns=("a", "b"), label="kind", name="jsonl")
    data = own(put, train, [{"a": "q", "b": "r", "kind": 2}], form="A: {} B: {}", **settings)
    assert (
        data.labels == ["0", "1", "2"] and data.test == [Text("A: q B: r", "2")] and data.train[0].text[:6] == "A: {x}"
    )
    assert own(put, train, [{"a": "q", "b": "r", "kind": 2}], **settings).test == [Text("q\nr", "2")]


def test_labels_come_from_training_and_strange_ones_are_counted(put):
    train = [{"text": f"t{i}", "label": "ab"[i % 2]} for i in range(9)]
    data = own(put, train, [{"text": "t", "label": "c"}, {"text": " ", "label": "a"}], "jsonl")
    assert data.labels == ["a", "b"] and data.test[0].label == "c"
    assert data.counts["test: labels never seen in training"] == 1 and data.counts["test: empty texts"] == 1


def test_official_test_texts_in_train_are_counted(put):
    train = [{"text": f"t{i}", "label": i % 2} for i in range(100)]
    data = own(put, train, [{"text": f"t{i}", "label": 1} for i in range(50, 150)], "jsonl")
    seen = data.counts["test: examples whose text is also in train"]
    assert seen == len({e.text for e in data.train} & {f"t{i}" for i in range(50, 150)}) and 45 <= seen <= 50


def test_ragged_lines_of_a_tsv_are_counted_up_to_one_in_a_hundred(put):
    lines = [f"t{i}\t{i % 2}\n" for i in range(100)]
    train = "text\tlabel\n" + "".join(lines[:7]) + "half a line\n" + "".join(lines[7:])
    data = own(put, train, "text\tlabel\nx\t1\n", "tsv")
    assert data.counts["train: lines left out, with another number of fields than the header"] == 1
    assert len(data.train) + len(data.validation) == 100
    with pytest.raises(DataError, match=r"train.tsv: 2 lines have other numbers of fields than the header, first 9"):
        own(put, train + "a\tb\tc\n", "text\tlabel\nx\t1\n", "tsv")


GOOD = "text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(9))


@pytest.mark.parametrize("train, message", [
    ("sentence,label\nx,1\n", r"train.csv, line 2: no column text; the columns are sentence, label"),
    ("text,label\nx,1\ny\n", r"train.csv, line 3: 1 fields, but the header has 2"),
    ('text,label\n"x"y,1\n', r"train.csv, line 2: "),
    (b"text,label\nx,1\n\xe9,1\n", r"train.csv, line 3: byte 0xe9 is not UTF-8"),
    ("text,label\nx,\n", r"train.csv, line 2: expected text and a label"),
    ("text,label\n", r"train.csv: there are no examples in it"),
    ("text,label\nx,1\ny,1\nz,1\n", r"train.csv: all its examples are '1'"),
    ("text,label\nx,1\nx,0\n", r"1 different examples are too few to hold some of them out"),
])  # fmt: skip
def test_faults_of_a_table(put, train, message):
    with pytest.raises(DataError, match=message):
        own(put, train, GOOD)


@pytest.mark.parametrize("line, message", [
    ('{"text": "x", "label": 1', r"test.jsonl, line 2: not JSON"),
    ("[1]", r"test.jsonl, line 2: expected a JSON object, got a list"),
    ('{"text": "x"}', r"test.jsonl, line 2: no column label; the columns are text"),
    ('{"text": 5, "label": 1}', r"test.jsonl, line 2: expected text and a label, got \[5\]"),
    ('{"text": "x", "label": null}', r"test.jsonl, line 2: expected text and a label"),
])  # fmt: skip
def test_faults_of_json_lines(put, line, message):
    with pytest.raises(DataError, match=message):
        own(put, [{"text": f"t{i}", "label": i % 2} for i in range(5)], '{"text": "x", "label": 1}\n' + line, "jsonl")


# ----------------------------------------------------------------------------
# Random splits


def test_duplicates_are_on_one_side_and_the_split_is_always_the_same(put):
    train = [{"text": f"t{i * i % 150}", "label": i % 2} for i in range(400)]
    data = own(put, train, train[:5], "jsonl", validation_fraction=0.2)
    assert not {e.text for e in data.train} & {e.text for e in data.validation}
    assert len({e.text for e in data.validation}) == round(0.2 * len({record["text"] for record in train}))
    assert len(data.train) + len(data.validation) == 400
    assert data == own(put, train, train[:5], "jsonl", validation_fraction=0.2)
    # The same on every machine and under every version of numpy.
    pinned = ["t16", "t64", "t144", "t76", "t129", "t136", "t54", "t51", "t69"]
    assert list(dict.fromkeys(e.text for e in data.validation)) == pinned


def test_questions_are_held_out_with_their_context(put):
    contexts = [
        (f"Town {i} is big.", [(f"q{i}-{j}", "Which?", [(f"Town {i}", 0)]) for j in range(3)]) for i in range(40)
    ]
    data = load(family="qa", train=put("train.json", squad(*contexts)), test=put("test.json", squad(*contexts[:4])))
    assert len({q.context for q in data.validation}) == 2 and len(data.validation) == 6
    assert not {q.context for q in data.validation} & {q.context for q in data.train}
    assert data.counts["test: examples whose context is also in train"] == 12 - 3 * sum(
        q.context in {c for c, _ in contexts[:4]} for q in data.validation[::3])  # fmt: skip


def test_a_validation_file_is_used_whole(put):
    data = own(put, GOOD, GOOD, validation=put("valid.csv", "text,label\nv,1\n"))
    assert data.validation == [Text("v", "1")] and len(data.train) == 9


def test_patterns_and_gz(put, tmp_path):
    for part in (1, 2):
        put(f"part-{part}.jsonl", [{"text": f"t{part}{i}", "label": i % 2} for i in range(5)])
    put("test.jsonl.gz", [{"text": "x", "label": 1}])
    data = load(family="sc", train=f"{tmp_path}/part-*.jsonl", test=f"{tmp_path}/test.jsonl")
    assert len(data.train) + len(data.validation) == 10 and data.test == [Text("x", "1")]
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:20])
    with pytest.raises(DataError, match="test.jsonl.gz: damaged gzip file"):
        load(family="sc", train=f"{tmp_path}/part-*.jsonl", test=f"{tmp_path}/test.jsonl")


# ----------------------------------------------------------------------------
# Words and tags


@pytest.mark.parametrize("tags, bio", [
    ("I-A I-A O I-A", "B-A I-A O B-A"),  # IOB1
    ("I-A B-A I-A I-B", "B-A B-A I-A B-B"),
    ("B-A I-A O B-A B-B", "B-A I-A O B-A B-B"),  # BIO
    ("B-A I-A E-A S-A O S-B S-B B-A E-A", "B-A I-A I-A B-A O B-B B-B B-A I-A"),  # BIOES
    ("B-A I-A L-A U-A", "B-A I-A I-A B-A"),  # BILOU
    ("O I-A I-B E-B I-B E-A S-A I-A", "O B-A B-B I-B B-B B-A B-A B-A"),  # broken
    ("B-A-B I-A-B I-A", "B-A-B I-A-B B-A"),  # a type with a dash
])  # fmt: skip
def test_every_scheme_becomes_bio(tags, bio):
    assert to_bio(tags.split()) == bio.split()
    assert to_bio(bio.split()) == bio.split()


def entities(tags):
    """The entities of one sentence by conlleval's tables of where a chunk ends and begins: [(type, first, last)]."""
    found, begun = [], 0
    before, kind_before = "O", ""
    for i, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        pair = before + prefix
        ends = pair in ("BB", "BO", "IB", "IO", "EE", "EI", "EO", "BS", "IS", "EB", "ES") or before == "S"
        begins = pair in ("EE", "EI", "OE", "OI", "SE", "SI") or prefix in ("B", "S")
        if before != "O" and (ends or kind != kind_before):
            found.append((kind_before, begun, i - 1))
        if begins or (prefix != "O" and kind != kind_before):
            begun = i
        before, kind_before = prefix, kind
    return found


def test_bio_has_the_entities_that_conlleval_counts():
    rng = random.Random(1)
    for _ in range(2000):
        tags = [rng.choice(["O", *(f"{p}-{k}" for p in "BIES" for k in "XY")]) for _ in range(rng.randint(1, 9))]
        bio = to_bio(tags)
        assert entities(bio) == entities(tags), tags
        assert all(now[0] != "I" or before[1:] == now[1:] for before, now in zip(["O", *bio], bio))


def read(put, text, **settings):
    return [(words, tags) for _, words, tags in conll_sentences(put("x.conll", text), **settings)]


def test_conll_columns(put):
    assert read(put, "a NN O\r\nb NN B-X\r\n\r\nc NN O") == [(["a", "b"], ["O", "B-X"]), (["c"], ["O"])]
    assert read(put, "\n\n-DOCSTART- -X- O\na  NN O\n-DOCSTART- -X- O\nb NN O\n\n") == [(["a"], ["O"]), (["b"], ["O"])]
    assert read(put, "\ufeffNew York\tO\n \xa0\tO\n") == [(["New York", " \xa0"], ["O", "O"])]
    assert read(put, "1\ta\tO\n2\tb\tB-X\t-\tme\n", word=1, tag=2) == [(["a", "b"], ["O", "B-X"])]


def test_a_number_sign_may_be_a_word_or_begin_a_comment(put):
    assert read(put, "# text = # a\n# newdoc\n#\tO\na\tO\n") == [(["#", "a"], ["O", "O"])]
    assert read(put, "# text = a\tb\na\tO\n#\tO\n") == [(["a", "#"], ["O", "O"])]
    assert read(put, "# O\n1 O\n\n# O\n") == [(["#", "1"], ["O", "O"]), (["#"], ["O"])]
    assert read(put, "#begin document (x); part 000\n# SYM *\n#tag NN (X)\n\n#end document\n") == [
        (["#", "#tag"], ["O", "B-X"])
    ]


@pytest.mark.parametrize("text, message", [
    ("a O\nb\n", r"x.conll, line 2: 1 columns, expected at least 2: 'b'"),
    ("a NN O\nb NN\n", r"x.conll, line 2: 2 columns, expected 3, as in the first: 'b NN'"),
    ("a O\nNew York O\n", r"x.conll, line 2: 3 columns, expected 2"),
    ("a\tO\n\tO\n", r"x.conll, line 2: the word is empty"),
    (b"a\tO\n\xff\tO\n", r"x.conll, line 2: byte 0xff is not UTF-8"),
    ("a\tO\n\nb\tO\nc\tNOUN\n", r"x.conll, sentence of line 3: the tag 'NOUN' is not O or B-, I-, E- or S- and a type"),
    ("a\tO\n# a remark\n", r"x.conll, line 2: 3 columns, expected 2"),
])  # fmt: skip
def test_faults_of_conll_columns(put, text, message):
    path = put("x.conll", text)
    with pytest.raises(DataError, match=message):
        load(family="tc", train=path, validation=path, test=path)


def test_tags_from_json_lines_and_the_counts(put):
    train = put("train.jsonl", [{"tokens": ["a", f"b{i}"], "label": ["O", "I-X"]} for i in range(20)])
    test = put("test.conll", "a B-Y\nb I-Y\n\nc B-X\n")
    data = load(family="tc", train=train, test=test)
    assert data.labels == ["O", "B-X"] and len(data.train) == 19 and len(data.validation) == 1
    assert data.counts["train: tags rewritten as BIO"] == 20
    assert data.counts["test: labels never seen in training"] == 2
    with pytest.raises(DataError, match=r"bad.jsonl, line 1: expected two lists of one length"):
        load(family="tc", train=train, test=put("bad.jsonl", [{"tokens": ["a"], "label": []}]))
    with pytest.raises(DataError, match=r"odd.jsonl, line 1: expected words, got 7"):
        load(family="tc", train=train, test=put("odd.jsonl", [{"tokens": [7], "label": ["O"]}]))
    with_empty = put("empty.jsonl", [{"tokens": [], "label": []}, {"tokens": ["a"], "label": ["O"]}])
    found = load(family="tc", train=train, test=with_empty)
    assert len(found.test) == 1 and found.counts["test: sentences without a word, left out"] == 1
    with pytest.raises(DataError, match=r"test.conll has no header; give the numbers"):
        load(family="tc", train=test, test=test, columns=("word",))


# ----------------------------------------------------------------------------
# Questions


def test_answers_outside_their_context(put):
    context = "Rome, oh Rome, and Rome again"
    questions = [("right", "?", [("Rome", 9)]), ("near", "?", [("Rome", 11)]), ("far", "?", [("Rome", -1)]),
                 ("none", "?", [("Oslo", 3)]), ("one", "?", [("Oslo", 3), ("oh", 99)]), ("empty", " ", [])]  # fmt: skip
    path = put("a.json", squad((context, questions)))
    data = load(family="qa", train=path, validation=path, test=path)
    found = {q.id: q.answers for q in data.train}
    assert found == {
        "right": [("Rome", 9)],
        "near": [("Rome", 9)],
        "far": [("Rome", 0)],
        "one": [("oh", 6)],
        "empty": [],
    }
    assert {q.id: q.answers for q in data.test}["none"] == [("Oslo", -1)]
    assert {q.id: q.answers for q in data.test}["one"] == [("Oslo", -1), ("oh", 6)]
    moved, absent = "answers moved to the nearest place that has their text", "that are not in the context"
    empty, again = "empty questions or contexts", "examples whose context is also in train"
    assert data.counts == {
        f"train: {moved}": 3, "train: questions left out, as no answer is in the context": 1,
        f"train: answers left out {absent}": 1, f"train: {empty}": 1,
        f"validation: {moved}": 3, f"validation: answers kept {absent}": 2, f"validation: {empty}": 1,
        f"test: {moved}": 3, f"test: answers kept {absent}": 2, f"test: {empty}": 1,
        f"validation: {again}": 6, f"test: {again}": 6,
    }  # fmt: skip


def test_an_impossible_question_has_no_answers_whatever_the_file_suggests(put):
    file = squad(("In Rome.", [("x", "Where?", [("Rome", 3)]), ("y", "When?", [])]))
    file["data"][0]["paragraphs"][0]["qas"][1]["plausible_answers"] = [{"text": "Rome", "answer_start": 3}]
    file["data"][0]["paragraphs"][0]["qas"][0]["is_impossible"] = True
    path = put("a.json", file)
    assert [q.answers for q in load(family="qa", train=path, validation=path, test=path).test] == [[], []]


def test_questions_from_json_lines(put):
    row = {"id": 7, "question": "Where?", "context": "In Rome.", "answers": {"text": ["Rome"], "answer_start": ["3"]}}
    with pytest.raises(DataError, match=r"text.jsonl, line 1: expected answers"):
        load(family="qa", train=put("text.jsonl", [row]), test=put("text.jsonl", [row]))
    row["answers"]["answer_start"] = [3]
    path = put("a.jsonl", [row, {**row, "id": 8, "answers": {"text": [], "answer_start": []}}])
    data = load(family="qa", train=path, validation=path, test=path)
    assert data.test == [Question("7", "Where?", "In Rome.", [("Rome", 3)]), Question("8", "Where?", "In Rome.", [])]
    with pytest.raises(DataError, match=r"b.jsonl, line 1: expected answers"):
        load(family="qa", train=path, test=put("b.jsonl", [{**row, "answers": ["Rome"]}]))


@pytest.mark.parametrize("content, message", [
    ('{"data": [\n{"paragraphs": [}\n]}', r"a.json, line 2: not JSON"),
    ("[1, 2]", r"a.json: not a SQuAD file"),
    ({"data": [{"paragraphs": [{"context": "x", "qas": [{"id": "1", "answers": []}]}]}]},
     r"article 1 has no 'question'"),
    ({"data": [{"paragraphs": [{"context": None, "qas": [{"id": "1", "question": "?", "answers": []}]}]}]},
     r"article 1 is not in SQuAD's layout: a question, context or answer that is not text"),
    (squad(("In Rome.", [("x", "Where?", [("Rome", 3)]), ("x", "When?", [])])),
     r"a.json: the id 'x' for the second time"),
])  # fmt: skip
def test_faults_of_a_squad_file(put, content, message):
    path = put("a.json", content)
    with pytest.raises(DataError, match=message):
        load(family="qa", train=path, test=path)


# ----------------------------------------------------------------------------
# Retrieval


def test_a_beir_folder_of_ones_own(put, tmp_path):
    beir(put, "b", train=40, test=3)
    data = load(family="ir", corpus=f"{tmp_path}/b/", train=f"{tmp_path}/b")
    held = data.validation[""]
    assert len(held.queries) == 2 and len(data.train) == 38 and len(held.corpus) == 48
    assert not set(held.queries.values()) & {pair.query for pair in data.train}
    assert data.test[""].queries == {f"q{i}": f"query {i}" for i in (40, 41, 42)}
    assert data.counts == {"validation: queries held out of train, at random": 2}
    beir(put, "b", train=40, dev=5, test=3)
    data = load(family="ir", corpus=f"{tmp_path}/b")
    assert len(data.train) == 40 and len(data.validation[""].queries) == 5


def test_equal_queries_are_held_out_together(put, tmp_path):
    beir(put, "b", train=20, test=2)
    put("b/queries.jsonl", [{"_id": f"q{i}", "text": f"query {i % 4}"} for i in range(22)])
    data = load(family="ir", corpus=f"{tmp_path}/b")
    assert len(data.validation[""].queries) == 5 and len({*data.validation[""].queries.values()}) == 1
    assert not {*data.validation[""].queries.values()} & {pair.query for pair in data.train}


def test_pairs_from_other_files(put, tmp_path):
    beir(put, "b", test=6)
    settings = dict(family="ir", corpus=f"{tmp_path}/b")
    table = put("pairs.tsv", "q\td\nwho\tme\n\tyou\n")
    data = load(**settings, train=table, columns=("q", "d"))
    assert data.train == [Pair("who", "me"), Pair("", "you")] and data.counts["train: empty queries or documents"] == 1
    assert len(data.validation[""].queries) == len(data.test[""].queries) == 3
    file = squad(("In Rome.", [("x", "Where?", [("Rome", 3)]), ("y", "When?", [])]))
    data = load(**settings, train=put("squad.json", file))
    assert data.train == [Pair("Where?", "In Rome.")]
    assert data.counts["train: questions left out, as they have no answer"] == 1
    beir(put, "c", train=4, test=1)
    data = load(**settings, train=f"{tmp_path}/c", validation=f"{tmp_path}/b/qrels/test.tsv")
    assert len(data.train) == 4 and data.validation == data.test
    with pytest.raises(DataError, match=r"pairs.tsv, line 2: no column query, document; the columns are q, d"):
        load(**settings, train=table)
    with pytest.raises(DataError, match=r"columns=\('q',\): pairs have two"):
        load(**settings, train=table, columns=("q",))


def test_judged_documents_only(put, tmp_path):
    beir(put, "b", train=20, dev=2, test=2)
    put("b/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq22\td22\t2\nq22\td1\t0\nq23\td0\t0\n")
    put("b/corpus.jsonl", [{"_id": f"d{i}", "title": "", "text": f"text {i}" * (i != 1)} for i in range(30)])
    data = load(family="ir", corpus=f"{tmp_path}/b", full_corpus=False)
    corpus = {"d20": "text 20", "d21": "text 21", "d22": "text 22", "d1": ""}
    assert data.test[""].corpus == data.validation[""].corpus == corpus
    assert data.test[""].qrels == {"q22": {"d22": 2, "d1": 0}} and data.test[""].queries == {"q22": "query 22"}
    assert len(data.train) == 20 and data.main == {"field": [], "paper": ["ndcg@10_judged"]}
    assert data.counts == {"test: queries left out, without a relevant document": 1, "corpus: empty documents": 1,
                           "corpus: documents left out, as they are not judged": 26}  # fmt: skip
    assert len(load(family="ir", corpus=f"{tmp_path}/b").test[""].corpus) == 30
    put("b/qrels/test.tsv", "query-id\tcorpus-id\tscore\nq22\td22\t0\n")
    with pytest.raises(DataError, match=r"b/qrels/test.tsv: no query has a relevant document"):
        load(family="ir", corpus=f"{tmp_path}/b")


def test_a_corpus_is_read_with_only_the_wanted_documents_in_memory(put):
    path = put("corpus.jsonl", [{"_id": f"d{i}", "text": "x" * 1000} for i in range(1000)])
    assert read_texts_by_id(path, {"d3": 0, "d999": 0}) == ({"d3": "x" * 1000, "d999": "x" * 1000}, 1000)


@pytest.mark.parametrize("file, content, message", [
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq3\tnone\t1\nq3\tnor\t1\n",
     r"corpus.jsonl: 2 judged documents are not in it, the first is 'none', of .*qrels/test.tsv"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nnobody\td3\t1\n",
     r"qrels/test.tsv: 1 queries in it are not in queries.jsonl, the first is 'nobody'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq3\td3\t1\nq3\td3\t2\n",
     r"qrels/test.tsv, line 3: another grade for query 'q3' and document 'd3'"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq3\td3\tyes\n",
     r"test.tsv, line 2: the score 'yes' is not a whole number"),
    ("qrels/test.tsv", "q3\t0\td3\t1\nq4\t0\td4\t1\n", r"test.tsv, line 2: no column query-id, corpus-id, score"),
    ("qrels/test.tsv", "query-id\tcorpus-id\tscore\nq3 d3 1\n", r"test.tsv, line 2: 1 fields, but the header has 3"),
    ("corpus.jsonl", '{"_id": "d1", "text": "x"}\n{"_id": "d1", "text": "y"}\n',
     r"corpus.jsonl, line 2: the id 'd1' for the second time"),
    ("corpus.jsonl", '{"_id": "d1", "title": "x"}\n',
     r'corpus.jsonl, line 1: expected "_id" and "text", got _id, title'),
    ("queries.jsonl", "\n{'_id': 1}\n", r"queries.jsonl, line 2: not JSON"),
])  # fmt: skip
def test_faults_of_a_beir_folder(put, tmp_path, file, content, message):
    beir(put, "b", train=3, test=2)
    put(f"b/{file}", content)
    with pytest.raises(DataError, match=message):
        load(family="ir", corpus=f"{tmp_path}/b")


# ----------------------------------------------------------------------------
# Settings and what is missing


@pytest.mark.parametrize("settings, message", [
    (dict(task="sts2"), r"task=sts2: no such task. Did you mean sst2\? There are sst2, qqp"),
    (dict(task="sst2", family="qa"), r"family=qa: but sst2 is of the family sc"),
    (dict(), r"family='': give a task, or one of the families sc, tc, qa, ir"),
    (dict(task="scifact", corpus="x"), r"corpus=x: only family=ir takes it"),
    (dict(task="msmarco", test="x"), r"msmarco keeps the judgements of nq, msmarco, mldr"),
    (dict(family="qa", form="{}", columns=("a",)), r"columns, form: the family qa has no use for it"),
    (dict(task="embedded-sc", test="x"), r"task=embedded-sc: is made from Python itself and takes no test"),
    (dict(family="sc", test="no.csv"), r"family=sc: missing:\n  --train\n  no.csv$"),
    (dict(family="ir"), r"family=ir: missing:\n  --corpus\n  --train$"),
])  # fmt: skip
def test_wrong_settings(settings, message):
    with pytest.raises(DataError, match=message):
        load(**settings)


def test_a_form_has_a_place_for_each_column(put):
    for form in ("{}", "{} {} {}", "{a} {b}"):
        with pytest.raises(DataError, match="needs one {} for each of the columns text, label"):
            own(put, GOOD, GOOD, columns=("text", "label"), form=form)


@pytest.mark.parametrize("name", TASKS)
def test_missing_files_are_told_at_once_with_where_to_get_them(monkeypatch, tmp_path, name):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError) as error:
        load(name, folder=tmp_path)
    message = str(error.value)
    task = TASKS[name]
    for path in [task.train, task.validation, task.test, *(p for paths in task.sets.values() for p in paths[1:])]:
        assert path in message
    assert task.source in message and "https://" in message and str(tmp_path / task.folder) in message
    assert ("pip install datasets" in message) == bool(task.hub)


def test_one_file_of_two_is_missing(put, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", hub({}))  # not asked: the folder is there
    sst2(put)
    (tmp_path / "sst2" / "dev.tsv").unlink()
    with pytest.raises(DataError, match=r"task=sst2: missing:\n  .*sst2/dev.tsv\n  Get train.tsv and dev.tsv of https"):
        load("sst2", folder=tmp_path)


def test_settings_replace_those_of_a_task(put, tmp_path):
    sst2(put)
    data = load("sst2", folder=tmp_path, test=put("mine.jsonl", [{"text": "x", "label": 0}]), columns=("text",),
                train=put("more.jsonl", [{"text": f"t{i}", "label": i % 2} for i in range(5)]))  # fmt: skip
    assert data.test == [Text("x", "negative")] and len(data.train) == 4


def test_embedded_tasks_come_from_their_own_module(monkeypatch):
    module = types.ModuleType("eval.embedded")
    module.load = lambda name: Dataset(name, "tc", ["O"], [], [], [], {}, {})
    monkeypatch.setitem(sys.modules, "eval.embedded", module)
    monkeypatch.setattr("eval.embedded", module, raising=False)
    assert load("embedded-tc").name == "embedded-tc"


# ----------------------------------------------------------------------------
# The Hugging Face hub, by a stand-in for its package


class Classes:
    def __init__(self, *names):
        self.names = names


class ListOf:
    def __init__(self, feature):
        self.feature = feature


class Rows(list):
    features = {}


def hub(tables):
    """A module `datasets` with these tables: {(name, ..., split): Rows}."""

    def load_dataset(*name, split):
        if (*name, split) not in tables:
            raise ConnectionError(f"no network for {name}")
        return tables[(*name, split)]

    module = types.ModuleType("datasets")
    module.load_dataset, module.__spec__ = load_dataset, ModuleSpec("datasets", None)
    return module


def test_the_hub_is_asked_where_the_folder_is_absent(monkeypatch, tmp_path):
    train = Rows({"premise": f"P {i}", "hypothesis": "H", "label": i % 3, "idx": i} for i in range(21))
    test = Rows([{"premise": "P", "hypothesis": "H", "label": 2, "idx": 0}])
    train.features = test.features = {"premise": None, "label": Classes("entailment", "neutral", "contradiction")}
    tables = {("nyu-mll/glue", "mnli", "train"): train, ("nyu-mll/glue", "mnli", "validation_matched"): test}
    monkeypatch.setitem(sys.modules, "datasets", hub(tables))
    data = load("mnli", folder=tmp_path)
    assert data.test == [Text("Premise: P\nHypothesis: H", "contradiction")] and len(data.train) == 20
    with pytest.raises(
        DataError, match=r"(?s)hf:nyu-mll/glue:qqp:train: no network.*task=qqp: missing:.*Get train.tsv"
    ):
        load("qqp", folder=tmp_path)


def test_hub_tags_and_questions(monkeypatch, put):
    tagged = Rows([{"tokens": ["a", "b"], "ner_tags": [0, 1]}])
    tagged.features = {"tokens": ListOf(None), "ner_tags": ListOf(Classes("O", "I-X"))}
    asked = Rows(
        [{"id": "x", "question": "?", "context": "In Rome.", "answers": {"text": ["Rome"], "answer_start": [3]}}]
    )
    monkeypatch.setitem(sys.modules, "datasets", hub({("me/ner", "s"): tagged, ("me/qa", "s"): asked}))
    one = dict.fromkeys(("train", "validation", "test"), "hf:me/ner:s")
    assert load(family="tc", **one, label="ner_tags").test == [Sentence(["a", "b"], ["O", "B-X"])]
    one = dict.fromkeys(("train", "validation", "test"), "hf:me/qa:s")
    assert load(family="qa", **one).test == [Question("x", "?", "In Rome.", [("Rome", 3)])]
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"hf:me/qa:s: needs the datasets package"):
        load(family="qa", **one)


# ----------------------------------------------------------------------------
# The script


def test_the_list_and_a_look(put, tmp_path, monkeypatch, capsys):
    for name in ("sst2", "wnut17", "scifact"):
        MINIATURES[name](put)
    monkeypatch.setattr(tasks, "folder", "")

    def run(*argv):
        monkeypatch.setattr(sys, "argv", ["eval/tasks.py", *argv, f"--folder={tmp_path}"])
        tasks.main()
        return capsys.readouterr().out

    listing = run().splitlines()
    there = {line.split()[0]: line.split()[-1] for line in listing[1:]}
    assert list(there) == [*TASKS, *tasks.EMBEDDED]
    assert there["sst2"] == there["scifact"] == there["embedded-ir"] == "yes" and "0 of 3 files" in listing[4]
    assert len({line.rindex(there[line.split()[0]]) for line in listing[1:] if line.endswith("yes")}) == 1  # aligned
    look = run("sst2")
    assert "labels: negative, positive" in look and "train: 19 examples" in look and "  label     positive" in look
    assert "ESB/B-location ." in run("wnut17")
    assert "test: 3 queries, 4 documents" in (look := run("scifact")) and "  document  Title 0 text 0" in look
    with pytest.raises(SystemExit, match="task=nothing: no such task"):
        run("nothing")


def test_every_rule_that_applied_is_a_positive_count(put, tmp_path):
    for name, write in MINIATURES.items():
        write(put)
        counts = load(name, folder=tmp_path).counts
        assert all(isinstance(count, int) and count > 0 for count in counts.values()), counts
        assert not isinstance(counts, Counter)
