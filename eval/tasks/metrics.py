"""Metrics of the four task families, the field's and the paper's, all in one form.

Each metric is a mean over classes (mostly one) of a ratio of two sums over the test set. Accuracy sums 1 for a right
text over 1 for each text; entity F1 sums 2 * right entities over predicted + gold entities; nDCG sums each query's nDCG
over 1. A metric returns both terms for each instance, as float64 (n, C, 2): n instances (texts, sentences, questions or
queries), C classes, numerator and denominator. `score` makes the percentage. A bootstrap, or a paired comparison of two
models, needs nothing but these instances:

    score(accuracy(["cat", "dog"], ["cat", "cat"]))  # 50.0

`predicted` and `gold` are sequences of equal length, in the order of the test set. Other lengths raise ValueError.
"""

import re
import string
from collections import Counter

import numpy as np


def score(instances):
    """Compute the percentage, 0 to 100, of a metric's instances (n, C, 2).

    It is 100 * the mean of sum(numerators) / sum(denominators) over the classes whose denominators do not sum to 0;
    0.0 if there is no such class, as in conlleval and seqeval.
    """
    return float(score_of_sums(np.sum(instances, axis=0, dtype=np.float64)))


def score_of_sums(sums):
    """Turn sums of numerators and denominators (..., C, 2) into percentages (...); see `score`."""
    counted = sums[..., 1] > 0
    ratios = np.divide(sums[..., 0], sums[..., 1], out=np.zeros_like(sums[..., 0]), where=counted)
    return 100 * (ratios.sum(-1) / np.maximum(counted.sum(-1), 1))


def in_set(name, what, between="/"):
    """Put the name of one of several test sets before the name of a metric or the number of an example."""
    return f"{name}{between}{what}" if name else what


def rounded(score, digits=1):
    """Round a score for text, to 0.0 and never to -0.0."""
    return round(float(score), digits) + 0.0


def one_class(numerators, denominators=1.0):
    """Return the instances (n, 1, 2) of a metric of one class. numerators: (n,). denominators: (n,), or one for all."""
    terms = np.broadcast_arrays(np.asarray(numerators, np.float64), denominators)
    return np.stack(terms, -1)[:, None]


def scores(family, predicted, examples, labels):
    """Compute the metrics {name: instances} of sc, tc or qa; of qa without token_set_f1, which compares tokens."""
    if family == "qa":
        return squad(predicted, examples)
    gold = [example.gold for example in examples]
    if family == "tc":
        return {"entity_f1": entity_f1(predicted, gold), "sentence_macro_f1": sentence_macro_f1(predicted, gold)}
    return text_scores(predicted, gold, labels)


# -----------------------------------------------------------------------------
# Sequence classification and regression


def accuracy(predicted, gold):
    """Per text: 1 if it is right, over 1. A gold label that training did not have counts as an error."""
    return one_class([p == g for p, g in zip(predicted, gold, strict=True)])


def f1(predicted, gold, labels):
    """Per text and class: 2 if the class is both predicted and gold, over 0, 1 or 2: in how many of the two it occurs.

    With two labels, only the second, the positive class, counts (C = 1). With more, all count alike (macro F1,
    C = len(labels)). A gold label outside `labels` makes the text a false positive of the predicted class.
    """
    classes = np.array(labels[1:] if len(labels) == 2 else labels, dtype=object)
    pairs = np.array([*zip(predicted, gold, strict=True)], dtype=object).reshape(-1, 2, 1)
    member = pairs == classes  # (n, 2, C): of the predicted label, of the gold one
    return np.stack([2.0 * member.all(1), member.sum(1)], -1)


def correlation(predicted, gold):
    """Pearson's correlation, n instances (n, 1, 2) like all others: z_p * z_g over (z_p² + z_g²) / 2.

    z_p and z_g are the predicted and the gold numbers in standard deviations from their means. The denominators sum to
    n. They also make resamples of the instances vary as the correlation does: numerator - score * denominator is its
    influence function. If all numbers are equal the score is 0.
    """
    z = np.array([predicted, gold], np.float64)  # (2, n)
    z -= z.mean(1, keepdims=True)
    std = z.std(1, keepdims=True)
    z /= np.where(std > 0, std, 1)
    return one_class(z[0] * z[1], (z[0] ** 2 + z[1] ** 2) / 2)


def ranks(values):
    """The rank of each value, from 1; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def text_scores(predicted, gold, labels):
    """Compute all metrics of sequence classification, or of regression if there are no labels.

    Spearman's correlation is Pearson's of the ranks. Matthews' correlation of two labels is Pearson's of 0 and 1. There
    a gold label that training did not have counts as the label that was not predicted.
    """
    if not labels:
        return {"pearson": correlation(predicted, gold), "spearman": correlation(ranks(predicted), ranks(gold))}
    scores = {"accuracy": accuracy(predicted, gold), "f1": f1(predicted, gold, labels)}
    if len(labels) == 2:
        positive = [p == labels[1] for p in predicted]
        scores["matthews"] = correlation(positive, [x == (p == g) for x, p, g in zip(positive, predicted, gold)])
    return scores


# -----------------------------------------------------------------------------
# Token classification


def entities(tags):
    """List the entities in a sentence's tags ("O", "B-PER", "I-PER", ...) as (type, begin, end), end excluded.

    It counts as conlleval (Tjong Kim Sang) and its ports count chunks, also if the tags break their scheme (IOB1, BIO,
    IOE, BIOES). A tag other than O begins an entity if its prefix is B or S, if the type changes, or if the tag before
    is O, E or S; else the entity goes on. So I-PER after O or after B-LOC begins an entity.
    """
    found, before = [], ("O", "")
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix != "O":
            begins = prefix in ("B", "S") or before[0] in ("O", "E", "S") or before[1] != kind
            found.append((kind, i if begins else found.pop()[1], i + 1))
        before = prefix, kind
    return found


def entity_f1(predicted, gold):
    """Per sentence of tags: 2 * entities right in type and both ends, over predicted + gold entities.

    Its score is conlleval's FB1, micro-averaged over types.
    """
    pairs = [(set(entities(p)), set(entities(g))) for p, g in zip(predicted, gold, strict=True)]
    return one_class([2 * len(p & g) for p, g in pairs], [len(p) + len(g) for p, g in pairs])


def sentence_macro_f1(predicted, gold):
    """The paper's metric: per sentence of tags (never empty) the mean F1 of the tags that occur in it, over 1.

    A tag occurs if it is the predicted or gold tag of a word. O is a tag like others, and B-PER and I-PER are two.
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
NO_ANSWER = "."  # stands for no answer; normalized texts have no punctuation


def normalize_answer(text):
    """Normalize a text as SQuAD's scripts do: lower case, then no punctuation, then no articles, single spaces."""
    return " ".join(ARTICLES.sub(" ", text.lower().translate(NO_PUNCTUATION)).split())


def word_f1(a, b):
    """Compute the F1, 0 to 1, of the words of two normalized texts, as multisets; 0 if both texts are empty."""
    a, b = Counter(a.split()), Counter(b.split())
    return 2 * (a & b).total() / max(1, a.total() + b.total())


def squad(predicted, questions):
    """Compute SQuAD's metrics as its official scripts do: {"exact_match": ..., "f1": ...}, instances (n, 1, 2) each.

    predicted: texts, "" for no answer. questions: objects with `answers`, a list of (text, start), empty if
    unanswerable. Per question: the best value over its answers, over 1.

    A set with an unanswerable question is scored as by the script of v2.0: answers that normalize to nothing are
    dropped, and if none is left, only a prediction that normalizes to nothing is right. Any other set is scored as by
    the script of v1.1, which does not treat them apart.
    """
    v2 = any(not question.answers for question in questions)
    exact_match, overlap = [], []
    for text, question in zip(predicted, questions, strict=True):
        answer = normalize_answer(text)
        gold = {normalize_answer(text) for text, _ in question.answers}
        if v2:
            answer, gold = answer or NO_ANSWER, gold - {""} or {NO_ANSWER}
        exact_match.append(answer in gold)
        overlap.append(max(word_f1(answer, text) for text in gold))
    return {"exact_match": one_class(exact_match), "f1": one_class(overlap)}


def token_set_f1(predicted, gold):
    """The paper's metric: per question the F1 of two sets of token positions, over 1. An empty set counts as {0}, so an
    unanswerable question without a predicted token scores 1."""
    pairs = [(p or {0}, g or {0}) for p, g in zip(predicted, gold, strict=True)]
    return one_class([2 * len(p & g) / (len(p) + len(g)) for p, g in pairs])


# -----------------------------------------------------------------------------
# Retrieval

DISCOUNT = 1 / np.log2(np.arange(2, 12))  # (10,), for ranks 1 to 10


def answerable(qrels):
    """List the ids of the queries with a relevant document (grade > 0), the instances of the retrieval metrics."""
    return [query for query, grades in qrels.items() if any(grade > 0 for grade in grades.values())]


def gains(run, qrels):
    """Return the grades of each answerable query's first 100 documents: (n, 100), negative and missing ones as 0.

    The ranking is trec_eval's: by score in float32, highest first; documents of equal score by id, in reverse order.
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
    """Compute {"ndcg@10": ..., "mrr@10": ..., "recall@100": ...}, instances (n, 1, 2) each, as trec_eval does.

    run: {query id: {document id: score}}, each query's best 100 documents at least. qrels: {query id: {document id:
    grade}}. The instances are the queries of `answerable(qrels)`, in that order. One that run lacks scores 0. In nDCG
    the gain is the grade and the discount log2(rank + 1). MRR is 0 if no relevant document is among the first ten
    (trec_eval's recip_rank has no such cut).
    """
    gain = gains(run, qrels)  # (n, 100)
    relevant = [[grade for grade in qrels[query].values() if grade > 0] for query in answerable(qrels)]
    ideal = np.zeros((len(gain), 10))
    for row, grades in zip(ideal, relevant):
        row[: len(grades)] = sorted(grades, reverse=True)[:10]
    first_ten = gain[:, :10] > 0
    return {
        "ndcg@10": one_class(gain[:, :10] @ DISCOUNT / (ideal @ DISCOUNT)),
        "mrr@10": one_class(first_ten.any(1) / (first_ten.argmax(1) + 1)),
        "recall@100": one_class((gain > 0).sum(1) / [len(grades) for grades in relevant]),
    }


def ndcg_retrieved(run, qrels):
    """The paper's nDCG@10, instances (n, 1, 2): the DCG over that of the best order of the same ten documents.

    The gain of a document is 1, whatever its grade above 0. The result is 0 if none of the ten is relevant. Relevant
    documents that were not retrieved cost nothing. The paper ranks only judged documents; the caller makes the run, and
    sees to that. Arguments and instances are those of `retrieval`.
    """
    gain = gains(run, qrels)[:, :10] > 0
    best = np.sort(gain)[:, ::-1] @ DISCOUNT
    return one_class(gain @ DISCOUNT / np.where(best > 0, best, 1))


def retrieval_scores(runs, sets):
    """Compute all metrics of retrieval, of {name of the set: {"judged": run, and maybe "corpus": run}}.

    The paper's metric is that of a run over the judged documents, the field's are those of a run over the corpus. The
    name of a set, if it has one, stands before the metric's, with a slash. sets: {name: Retrieval}.
    """
    scores = {}
    for name, found in runs.items():
        values = {"ndcg@10_judged": ndcg_retrieved(found["judged"], sets[name].qrels)}
        if "corpus" in found:
            values |= retrieval(found["corpus"], sets[name].qrels)
        scores |= {in_set(name, metric): value for metric, value in values.items()}
    return scores
