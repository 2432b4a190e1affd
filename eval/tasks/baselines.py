"""What simple methods reach on a task: the scores that a fine-tuned encoder has to beat.

    sc   majority     the class most frequent in training
         tfidf        logistic regression on TF-IDF of words
    tc   word         the tag that the word had most often in training
    qa   random       as many words in a row as answers have, anywhere in the context
         overlap      the stretch of words next to what the question shares with the context
         no_answer    always "no answer", where a test question has none
    ir   random       documents in a random order
         bm25         BM25
"""

import random
import re
from array import array
from collections import Counter, defaultdict

import numpy as np
import torch

from eval.tasks import metrics

WORD = re.compile(r"\w+")
# Words too common to say what a text is about: the stop words of Lucene, and those that questions begin with.
STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with what which who whom whose when where why how do does did".split()
)


def words(text):
    return WORD.findall(text.lower())


def baselines(dataset):
    """{baseline: {metric: score in percent}} on the test set of a Dataset; the metrics of several retrieval sets
    have the set's name and a slash in front. Deterministic."""
    return BASELINES[dataset.family](dataset)


# ---------------------------------------------------------------------------------------------------------------------
# Classification


def sc_baselines(dataset):
    gold = [x.label for x in dataset.test]
    majority = Counter(x.label for x in dataset.train).most_common(1)[0][0]
    predicted = {"majority": [majority] * len(gold), "tfidf": tfidf_predictions(dataset)}
    return {
        name: {"accuracy": metrics.score(metrics.accuracy(p, gold)),
               "f1": metrics.score(metrics.f1(p, gold, dataset.labels))}
        for name, p in predicted.items()
    }  # fmt: skip


def tfidf_predictions(dataset):
    """The class of each test text by logistic regression on TF-IDF of the words seen in training.

    A word that occurs n times in a text and in d of the N training texts weighs (1 + ln n) (1 + ln((1 + N) / (1 + d)));
    the weights of a text are scaled to length 1. Minimised: mean cross entropy + |W|^2 / 2N, by L-BFGS over all
    texts at once; the intercepts are free. (scikit-learn's TfidfVectorizer(sublinear_tf=True) with
    LogisticRegression(C=1), but for its rules for what is a word.)
    """
    texts = [Counter(words(x.text)) for x in dataset.train]
    found = Counter(word for text in texts for word in text)  # in how many texts
    row = {word: i for i, word in enumerate(found)}
    idf = 1 + np.log((1 + len(texts)) / (1 + np.array([*found.values()])))

    def features(texts):
        """The arguments of embedding_bag: rows, where each text begins among them, weights."""
        kept = [{row[word]: n for word, n in text.items() if word in row} for text in texts]
        sizes = np.array([len(text) for text in kept])
        rows = np.array([i for text in kept for i in text], dtype=np.int64)
        weights = (1 + np.log([n for text in kept for n in text.values()])) * idf[rows]
        owner = np.repeat(np.arange(len(kept)), sizes)
        weights /= np.sqrt(np.bincount(owner, weights**2, minlength=len(kept)))[owner]
        return torch.from_numpy(rows), torch.from_numpy(sizes.cumsum() - sizes), torch.from_numpy(weights)

    def scores(texts_as_rows):  # (texts, classes)
        rows, begins, weights = texts_as_rows
        return torch.nn.functional.embedding_bag(rows, W, begins, mode="sum", per_sample_weights=weights) + b

    W = torch.zeros(len(row), len(dataset.labels), dtype=torch.float64, requires_grad=True)
    b = torch.zeros(len(dataset.labels), dtype=torch.float64, requires_grad=True)
    train, target = features(texts), torch.tensor([dataset.labels.index(x.label) for x in dataset.train])
    optimizer = torch.optim.LBFGS([W, b], max_iter=100, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(scores(train), target) + (W**2).sum() / (2 * len(texts))
        loss.backward()
        return loss

    optimizer.step(closure)
    with torch.no_grad():
        best = scores(features([Counter(words(x.text)) for x in dataset.test])).argmax(1)
    return [dataset.labels[i] for i in best]


# ---------------------------------------------------------------------------------------------------------------------
# Tagging


def tc_baselines(dataset):
    tags = defaultdict(Counter)
    for x in dataset.train:
        for word, tag in zip(x.words, x.tags):
            tags[word][tag] += 1
    usual = {word: counts.most_common(1)[0][0] for word, counts in tags.items()}
    gold = [x.tags for x in dataset.test]
    predicted = [[usual.get(word, "O") for word in x.words] for x in dataset.test]
    return {"word": {"entity_f1": metrics.score(metrics.entity_f1(predicted, gold)),
                     "sentence_macro_f1": metrics.score(metrics.sentence_macro_f1(predicted, gold))}}  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Answer spans


def qa_baselines(dataset):
    length = int(np.median([len(words(text)) for x in dataset.train for text, _ in x.answers[:1]] or [1]))
    draw = random.Random(0)
    predicted = {"random": {x.id: random_answer(x.context, length, draw) for x in dataset.test},
                 "overlap": {x.id: overlap_answer(x.question, x.context) for x in dataset.test}}  # fmt: skip
    if not all(x.answers for x in dataset.test):
        predicted["no_answer"] = {x.id: "" for x in dataset.test}
    return {name: {metric: metrics.score(instances) for metric, instances in metrics.squad(p, dataset.test).items()}
            for name, p in predicted.items()}  # fmt: skip


def random_answer(context, length, draw):
    """A run of so many words anywhere in the context, "" if it has none."""
    found = [*WORD.finditer(context)]
    if not found:
        return ""
    begin = draw.randrange(max(1, len(found) - length + 1))
    return context[found[begin].start() : found[min(begin + length, len(found)) - 1].end()]


def overlap_answer(question, context):
    """The answer by word overlap alone, a piece of the context ("" if it has no words).

    As in the sliding window of Richardson et al. (2013), a word of the question that occurs c times in the context
    weighs log(1 + 1 / c). Taken is the sentence or line with most such weight; a stretch in it is a run of words
    without any of the question and without stop words; the answer is the stretch nearest to the question's words: the
    sum of their weights, each divided by its distance in words, is largest.
    """
    asked = set(words(question)) - STOP_WORDS
    count = Counter(words(context))
    weight = {word: np.log(1 + 1 / count[word]) for word in asked if word in count}
    sentences = [(m.start(), [*WORD.finditer(m[0])]) for m in re.finditer(r".+?(?:[.!?](?=\s)|\n|$)", context)]
    sentences = [(start, found) for start, found in sentences if found]
    if not sentences:
        return ""
    # Summed in the order of the text: a set's order differs from run to run, and so would the rounding.
    start, found = max(sentences, key=lambda s: sum({m[0].lower(): weight.get(m[0].lower(), 0) for m in s[1]}.values()))
    sentence = [m[0].lower() for m in found]
    anchors = [(i, weight[word]) for i, word in enumerate(sentence) if word in weight]
    stretches, begin = [], 0
    for i, word in enumerate([*sentence, None]):
        if word is None or word in asked or word in STOP_WORDS:
            if begin < i:
                near = sum(w / (begin - j if j < begin else j - i + 1) for j, w in anchors)
                stretches.append((near, begin, i))
            begin = i + 1
    _, begin, end = max(stretches, key=lambda s: s[0], default=(0, 0, len(sentence)))
    return context[start + found[begin].start() : start + found[end - 1].end()]


# ---------------------------------------------------------------------------------------------------------------------
# Retrieval


def ir_baselines(dataset):
    found = {"random": {}, "bm25": {}}
    for name, (queries, corpus, qrels) in dataset.test.items():
        asked = {query: queries[query] for query in qrels}
        judged = {document: corpus[document] for grades in qrels.values() for document in grades}
        for method, rank in (("random", random_ranking), ("bm25", bm25)):
            scores = {"ndcg@10_judged": metrics.ndcg_retrieved(rank(asked, judged), qrels)}
            if dataset.main["field"]:  # else the corpus is not the whole one
                scores |= metrics.retrieval(rank(asked, corpus), qrels)
            found[method] |= {f"{name}/{metric}" if name else metric: metrics.score(x) for metric, x in scores.items()}
    return found


def random_ranking(queries, corpus, best=100):
    """{query id: {document id: score}} of documents drawn at random, in a random order."""
    draw, ids = random.Random(0), list(corpus)
    return {query: {document: -rank for rank, document in enumerate(draw.sample(ids, min(best, len(ids))))}
            for query in queries}  # fmt: skip


def bm25(queries, corpus, k1=0.9, b=0.4, best=100):
    """{query id: {document id: score}} of each query's best documents, those with a word in common only.

    queries, corpus: {id: text}. The score is the sum over the query's words, a repeated one counted again, of
        ln(1 + (N - d + 0.5) / (d + 0.5)) * n / (n + k1 * (1 - b + b * length / mean length))
    for a word that occurs n times in the document and in d of the N documents; length in words. Stop words count
    nowhere. The formula is Lucene's; k1 and b are the defaults of Anserini, which also stems the words.
    """
    asked = {query: [word for word in words(text) if word not in STOP_WORDS] for query, text in queries.items()}
    number = {word: i for i, word in enumerate(dict.fromkeys(word for found in asked.values() for word in found))}
    # The index: an entry for each of the queries' words in each document. Lists would take four times the space.
    terms, documents, counts = array("i"), array("i"), array("i")
    lengths = np.zeros(len(corpus))
    for i, text in enumerate(corpus.values()):
        found = Counter(words(text))
        lengths[i] = sum(n for word, n in found.items() if word not in STOP_WORDS)
        for word, n in found.items():
            if word in number:
                terms.append(number[word])
                documents.append(i)
                counts.append(n)
    order = np.argsort(terms, kind="stable")
    documents, counts = np.array(documents)[order], np.array(counts)[order]
    d = np.bincount(terms, minlength=len(number))
    begin = np.concatenate([[0], d.cumsum()])  # of each word's entries
    idf = np.log(1 + (len(corpus) - d + 0.5) / (d + 0.5))
    norm = k1 * (1 - b + b * lengths / lengths.mean())
    weights = np.repeat(idf, d) * counts / (counts + norm[documents])

    ids, run = list(corpus), {}
    for query, found in asked.items():
        scores = np.zeros(len(corpus))
        for word in found:
            entries = slice(begin[number[word]], begin[number[word] + 1])
            scores[documents[entries]] += weights[entries]
        hits = np.flatnonzero(scores)
        if len(hits) > best:
            hits = hits[np.argpartition(-scores[hits], best)[:best]]
        run[query] = {ids[i]: float(scores[i]) for i in hits}
    return run


BASELINES = {"sc": sc_baselines, "tc": tc_baselines, "qa": qa_baselines, "ir": ir_baselines}
