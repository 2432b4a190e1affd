"""Metrics of all four task families, the field's and the paper's, in one form.

Each is a mean over classes (mostly one) of a ratio of two sums over the test set: accuracy sums 1 for a right
text over 1 for each text, entity F1 sums 2 * right entities over predicted + gold entities, nDCG sums each query's
nDCG over 1. A metric returns both terms per instance, an array (n, C, 2) of float64: n instances (texts,
sentences, questions, queries), C classes, numerator and denominator. `score` makes the percentage, and whoever
draws instances anew, or pairs them between two models, needs nothing else:

    score(accuracy(["cat", "dog"], ["cat", "cat"]))  # 50.0

`predicted` and `gold` are sequences of equal length (a ValueError where not), in the order of the test set.
"""

import re
import string
from collections import Counter

import numpy as np


def score(instances):
    """The percentage, 0 to 100, of a metric's instances (n, C, 2).

    100 * mean of sum(numerators) / sum(denominators) over the classes whose denominators do not sum to 0. It is
    0.0 where none is left, say without a single entity, predicted or gold: as in conlleval and seqeval.
    """
    numerators, denominators = np.sum(instances, axis=0, dtype=np.float64).T  # (C,) each
    counted = denominators > 0
    return float(100 * np.mean(numerators[counted] / denominators[counted])) if counted.any() else 0.0


def one_class(numerators, denominators=1.0):
    """The instances (n, 1, 2) of a metric of one class: numerators (n,), denominators (n,) or one for all."""
    terms = np.broadcast_arrays(np.asarray(numerators, np.float64), denominators)
    return np.stack(terms, -1)[:, None]


# -----------------------------------------------------------------------------
# Sequence classification


def accuracy(predicted, gold):
    """Per text: right or not, over 1. A gold label that was not seen in training is wrong like any other error."""
    return one_class([p == g for p, g in zip(predicted, gold, strict=True)])


def f1(predicted, gold, labels):
    """Per text and class: 2 if it is both predicted and gold, over how many of the two it is.

    Of two labels the second is the positive class and the only one counted (C = 1). Of more, all are, each
    with the same weight (macro F1, C = len(labels)); a class that is nowhere predicted or gold drops out in
    `score`, as in scikit-learn. A gold label outside `labels` has no class of its own: the text is a false positive of
    the class predicted.
    """
    classes = np.array(labels[1:] if len(labels) == 2 else labels, dtype=object)
    pairs = np.array([*zip(predicted, gold, strict=True)], dtype=object).reshape(-1, 2, 1)
    member = pairs == classes  # (n, 2, C): of the predicted label, of the gold one
    return np.stack([2.0 * member.all(1), member.sum(1)], -1)


# -----------------------------------------------------------------------------
# Token classification


def entities(tags):
    """The entities in a sentence's tags ("O", "B-PER", "I-PER", ...): a list of (type, begin, end), end excluded.

    As conlleval (Tjong Kim Sang) counts chunks in IOB1, BIO and IOE, also where the tags break their scheme: at any
    tag but O an entity begins if its prefix is B or S, if the type changes, or if the tag before is O, E or S;
    else the entity before goes on. So I-PER after O or after B-LOC begins an entity. S, and B after E, which the
    script of 2004 does not know, as its later ports count them, so BIOES is right too.
    """
    found, before = [], ("O", "")
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix != "O":
            if prefix in ("B", "S") or before[0] in ("O", "E", "S") or before[1] != kind:
                found.append((kind, i, i + 1))
            else:
                found[-1] = (kind, found[-1][1], i + 1)
        before = prefix, kind
    return found


def entity_f1(predicted, gold):
    """Per sentence of tags: 2 * entities right in type and both ends, over predicted + gold entities.

    Its score is conlleval's FB1, micro-averaged over types.
    """
    pairs = [(set(entities(p)), set(entities(g))) for p, g in zip(predicted, gold, strict=True)]
    return one_class([2 * len(p & g) for p, g in pairs], [len(p) + len(g) for p, g in pairs])


def sentence_macro_f1(predicted, gold):
    """The paper's: per sentence of tags (never empty) the mean F1 over the tags that occur in it, over 1.

    A tag occurs if a word has it as predicted or gold tag. O is one of them, and B-PER and I-PER are two.
    """
    means = []
    for p, g in zip(predicted, gold, strict=True):
        right = Counter(a for a, b in zip(p, g, strict=True) if a == b)
        total = Counter(p) + Counter(g)
        means.append(sum(2 * right[tag] / total[tag] for tag in total) / len(total))
    return one_class(means)


# -----------------------------------------------------------------------------
# Question answering

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: typographic quotes and dashes stay
NO_ANSWER = "."  # stands for no answer; no normalised text holds it


def normalise(text):
    """Text as SQuAD's scripts compare it: lower case, then no punctuation, then no articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def word_f1(a, b):
    """F1, 0 to 1, of the words of two normalised texts, a word shared as often as both have it; 0 if both are empty."""
    a, b = Counter(a.split()), Counter(b.split())
    return 2 * (a & b).total() / max(1, a.total() + b.total())


def squad(predicted, questions):
    """{"exact_match": ..., "f1": ...}, instances (n, 1, 2) each, of SQuAD's official scripts.

    predicted: {question id: text}, "" for no answer; every id must be there. questions: with an `id` and `answers`, a
    list of (text, start), empty if unanswerable. Per question the best over its answers, over 1.

    A set that has an unanswerable question is scored by the script of v2.0: answers that normalise to nothing are
    left out, and where none is left only a prediction that normalises to nothing is right. Any other set by that
    of v1.1, where such an answer stays: it is matched exactly by such a prediction, with F1 0.
    """
    v2 = any(not question.answers for question in questions)
    exact_match, overlap = [], []
    for question in questions:
        answer = normalise(predicted[question.id])
        gold = {normalise(text) for text, _ in question.answers}
        if v2:
            answer, gold = answer or NO_ANSWER, gold - {""} or {NO_ANSWER}
        exact_match.append(answer in gold)
        overlap.append(max(word_f1(answer, text) for text in gold))
    return {"exact_match": one_class(exact_match), "f1": one_class(overlap)}


def token_set_f1(predicted, gold):
    """The paper's: per question F1 of two sets of token positions, over 1; an empty set counts as {0}.

    So an unanswerable question with nothing predicted scores 1.
    """
    pairs = [(p or {0}, g or {0}) for p, g in zip(predicted, gold, strict=True)]
    return one_class([2 * len(p & g) / (len(p) + len(g)) for p, g in pairs])


# -----------------------------------------------------------------------------
# Retrieval

DISCOUNT = 1 / np.log2(np.arange(2, 12))  # (10,), of ranks 1 to 10


def answerable(qrels):
    """The ids of the queries with at least one relevant document (grade > 0), in the order of qrels.

    They are the instances of the retrieval metrics.
    """
    return [query for query, grades in qrels.items() if any(grade > 0 for grade in grades.values())]


def gains(run, qrels):
    """The grades of each answerable query's first 100 documents: (n, 100), 0 for a negative grade and past the end.

    Ranked as trec_eval does: by score in float32, highest first, documents of equal score by id, last first.
    """
    queries = answerable(qrels)
    found = np.zeros((len(queries), 100))
    for row, query in zip(found, queries):
        documents = run.get(query, {})
        scores = np.array([*documents.values()], np.float32).tolist()
        ranking = sorted(zip(scores, documents), reverse=True)[:100]
        row[: len(ranking)] = [max(qrels[query].get(document, 0), 0) for _, document in ranking]
    return found


def retrieval(run, qrels):
    """{"ndcg@10": ..., "mrr@10": ..., "recall@100": ...}, instances (n, 1, 2) each, as trec_eval computes them.

    run: {query id: {document id: score}}, each query's best 100 documents at least. qrels: {query id: {document
    id: grade}}. An instance is a query of `answerable(qrels)`, in that order; one that is not in run scores 0, one that
    is only in run does not count. The gain of nDCG is the grade itself, its discount log2(rank + 1). MRR is 0 where
    no relevant document is among the first ten (trec_eval's recip_rank has no such cut).
    """
    gain = gains(run, qrels)  # (n, 100)
    ideal, relevant = np.zeros((len(gain), 10)), np.zeros(len(gain))
    for i, query in enumerate(answerable(qrels)):
        grades = sorted((grade for grade in qrels[query].values() if grade > 0), reverse=True)
        ideal[i, : len(grades)], relevant[i] = grades[:10], len(grades)
    hit = gain > 0
    first_ten = hit[:, :10]
    return {
        "ndcg@10": one_class(gain[:, :10] @ DISCOUNT / (ideal @ DISCOUNT)),
        "mrr@10": one_class(first_ten.any(1) / (first_ten.argmax(1) + 1)),
        "recall@100": one_class(hit.sum(1) / relevant),
    }


def ndcg_retrieved(run, qrels):
    """The paper's nDCG@10, instances (n, 1, 2): divided by that of the best order of the ten documents retrieved.

    0 where none of them is relevant; relevant documents that were not retrieved cost nothing. The paper ranks
    judged documents only: that is for the caller, who makes the run. Arguments and instances as in `retrieval`.
    """
    gain = gains(run, qrels)[:, :10]
    best = -np.sort(-gain, axis=1) @ DISCOUNT
    return one_class(gain @ DISCOUNT / np.where(best > 0, best, 1))
