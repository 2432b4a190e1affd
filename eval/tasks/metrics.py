"""Metrics of the four task families, the field's and the paper's, all in one form.

Each metric is a ratio of two sums over the test set, or the mean of such ratios over classes. Accuracy divides the
number of right texts by that of all texts. Entity F1 divides twice the right entities by the predicted plus the gold
ones. A metric returns the terms of both sums for each instance, as float64 (n, C, 2): n instances (texts, sentences,
questions or queries), C classes (mostly one), numerator and denominator. `score` turns them into a percentage. A
bootstrap or a paired comparison of two models needs only these instances:

    score(accuracy(["cat", "dog"], ["cat", "cat"]))  # 50.0

`predicted` and `gold` are sequences in the order of the test set. Unequal lengths raise ValueError.
"""

import re
import string
from collections import Counter

import numpy as np


def score(instances):
    """Compute a metric's percentage from its instances (n, C, 2).

    It is 100 times the mean of sum(numerators) / sum(denominators) over the classes. A class whose denominators sum to
    0 is left out. If all are, the percentage is 0.0, as in conlleval and seqeval.
    """
    return float(score_of_sums(np.sum(instances, axis=0, dtype=np.float64)))


def score_of_sums(sums):
    """Turn sums of numerators and denominators (..., C, 2) into percentages (...); see `score`."""
    numerators, denominators = np.moveaxis(sums, -1, 0)
    counted = denominators > 0
    ratios = numerators / np.where(counted, denominators, np.inf)
    return 100 * (ratios.sum(-1) / np.maximum(counted.sum(-1), 1))


def in_set(name, what):
    """Put the name of a test set, if it has one, before the name of a metric or the id of an example."""
    return f"{name}/{what}" if name else what


def main_of(main, kind="field"):
    """Return the names of the metrics whose mean is a task's score. kind: "field" or "paper".

    If the field's list is empty, the paper's is used. main: see `splits.Dataset`.
    """
    return main[kind] or main["paper"]


def mean_score(scores, names):
    """Return the mean of the named metrics in {metric: percentage}; names that it lacks are skipped."""
    values = [scores[name] for name in names if name in scores]
    if not np.isfinite(values).all():
        raise ValueError(f"the metric's values are {values}, expected finite numbers")
    return sum(values) / len(values)


def rounded(score, digits=1):
    """Round a score for display, never to -0.0."""
    return round(float(score), digits) + 0.0


def one_class(numerators, denominators=1.0):
    """Return the instances (n, 1, 2) of a metric with one class. numerators: (n,). denominators: (n,) or a number."""
    return np.stack(np.broadcast_arrays(numerators, denominators), -1)[:, None].astype(np.float64)


def scores(family, predicted, examples, labels):
    """Return {metric: instances} for sc, tc or qa. For qa, token_set_f1 is missing, because it compares tokens.

    predicted: a label, a list of tags or an answer for each example.
    """
    gold = [example.gold for example in examples]
    if family == "qa":
        return squad(predicted, gold)
    if family == "sc":
        return text_scores(predicted, gold, labels)
    return {
        "entity_f1": entity_f1(predicted, gold),
        "sentence_macro_f1": sentence_macro_f1(predicted, gold),
    }


# -----------------------------------------------------------------------------
# Sequence classification and regression


def accuracy(predicted, gold):
    """Per text: 1 if the label is right, over 1. A gold label that is not in the training set counts as an error."""
    return one_class([p == g for p, g in zip(predicted, gold, strict=True)])


def f1(predicted, gold, labels):
    """Per text and class: 2 if the class is both predicted and gold, over 2, 1 or 0: predicted, gold, both or neither.

    With two labels, only the second, the positive class, counts (C = 1). With more, all count equally (macro F1,
    C = len(labels)). A text whose gold label is not in `labels` is a false positive of the predicted class.
    """
    counted = np.array(labels[1:] if len(labels) == 2 else labels, object)
    p = np.array(predicted, object)[:, None] == counted  # (n, C)
    g = np.array(gold, object)[:, None] == counted
    return np.stack((2.0 * (p & g), 1.0 * p + g), -1)


def correlation(predicted, gold):
    """Pearson's correlation as instances (n, 1, 2): z_p * z_g over (z_p² + z_g²) / 2.

    z_p and z_g are the predicted and the gold numbers, standardized. The denominators sum to n. With them, resampled
    instances vary as the correlation does: numerator - score * denominator is its influence function. If all predicted
    or all gold numbers are equal, the score is 0.
    """
    z = np.array([predicted, gold], np.float64)  # (2, n)
    z -= z.mean(1, keepdims=True)
    std = z.std(1, keepdims=True)
    std[std == 0] = 1
    z_p, z_g = z / std
    return one_class(z_p * z_g, (z_p**2 + z_g**2) / 2)


def ranks(values):
    """Return the rank of each value, from 1. Equal values share the mean of their ranks."""
    ordered = np.sort(values)
    lower = np.searchsorted(ordered, values)
    upper = np.searchsorted(ordered, values, "right")
    return (lower + 1 + upper) / 2


def text_scores(predicted, gold, labels):
    """Compute all metrics of sequence classification, or of regression if there are no labels.

    Spearman's correlation is Pearson's between ranks. Matthews' is Pearson's between labels as 0 and 1; a gold label
    that is not in the training set counts as the label that was not predicted.
    """
    if not labels:
        return {
            "pearson": correlation(predicted, gold),
            "spearman": correlation(ranks(predicted), ranks(gold)),
        }
    scores = {
        "accuracy": accuracy(predicted, gold),
        "f1": f1(predicted, gold, labels),
    }
    if len(labels) == 2:
        second = np.array([p == labels[1] for p in predicted])
        right = scores["accuracy"][:, 0, 0] == 1
        scores["matthews"] = correlation(second, second == right)
    return scores


# -----------------------------------------------------------------------------
# Token classification


def entities(tags):
    """List the entities in a sentence's tags ("O", "B-PER", "I-PER", ...) as (type, begin, end), end excluded.

    The rules are those of conlleval (Tjong Kim Sang) and its ports, also for tags that break their scheme (IOB1, BIO,
    IOE, BIOES). A tag other than O begins an entity if its prefix is B or S, if the type changes, or if the tag before
    is O, E or S. Otherwise the entity continues. So I-PER after O or after B-LOC begins an entity.
    """
    found = []
    last_prefix = "O"
    last_kind = ""
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix != "O":
            begin = i
            if prefix not in "BS" and last_prefix not in "OES" and last_kind == kind:  # the entity continues
                _, begin, _ = found.pop()
            found.append((kind, begin, i + 1))
        last_prefix = prefix
        last_kind = kind
    return found


def entity_f1(predicted, gold):
    """Per sentence: twice the entities that are right in type and both ends, over the predicted plus the gold ones.

    The score is conlleval's FB1, micro-averaged over types. predicted, gold: a list of tags per sentence.
    """
    right = []
    total = []
    for tags, gold_tags in zip(predicted, gold, strict=True):
        found = {*entities(tags)}
        wanted = {*entities(gold_tags)}
        right.append(2 * len(found & wanted))
        total.append(len(found) + len(wanted))
    return one_class(right, total)


def sentence_macro_f1(predicted, gold):
    """The paper's metric. Per sentence: the mean F1 of its tags, predicted or gold, over 1.

    O is a tag like any other, and B-PER and I-PER are two tags. predicted, gold: a list of tags per sentence, not
    empty.
    """
    means = []
    for tags, gold_tags in zip(predicted, gold, strict=True):
        right = Counter()
        total = Counter()
        for tag, gold_tag in zip(tags, gold_tags, strict=True):
            right[tag] += tag == gold_tag
            total[tag] += 1
            total[gold_tag] += 1
        means.append(sum(2 * right[tag] / n for tag, n in total.items()) / len(total))
    return one_class(means)


# -----------------------------------------------------------------------------
# Question answering

ARTICLES = re.compile(r"\b(a|an|the)\b")
NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # ASCII only: typographic quotes and dashes stay
NO_ANSWER = "."  # stands for no answer; normalized texts have no punctuation


def normalize_answer(text):
    """Normalize a text as SQuAD's scripts do: lower case, no punctuation, no articles, single spaces; in this order."""
    text = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", text).split())


def word_f1(a, b):
    """Return the F1 (0 to 1) of two normalized texts as multisets of words; 0 if both are empty."""
    a = Counter(a.split())
    b = Counter(b.split())
    return 2 * (a & b).total() / max(1, a.total() + b.total())


def squad(predicted, gold):
    """Return {"exact_match": ..., "f1": ...} as SQuAD's official scripts compute them, instances (n, 1, 2) each.

    predicted: texts, "" for no answer. gold: the texts of each question's answers, [] if it is unanswerable.
    Per question: the best value over the answers, over 1.

    If any question is unanswerable, the rules are those of SQuAD 2.0: gold answers that normalize to "" are dropped. If
    none is left, only a prediction that normalizes to "" is right. Otherwise the rules are those of SQuAD 1.1, which
    treats such answers like any other.
    """
    v2 = not all(gold)
    exact_match = []
    overlap = []
    for text, answers in zip(predicted, gold, strict=True):
        answer = normalize_answer(text)
        texts = set(map(normalize_answer, answers))
        if v2:
            answer = answer or NO_ANSWER
            texts = texts - {""} or {NO_ANSWER}
        exact_match.append(answer in texts)
        overlap.append(max(word_f1(answer, text) for text in texts))
    return {
        "exact_match": one_class(exact_match),
        "f1": one_class(overlap),
    }


def token_set_f1(predicted, gold):
    """The paper's metric. Per question: the F1 of two sets of token positions, over 1. An empty set counts as {0}, so
    an unanswerable question with no predicted token scores 1."""
    values = []
    for found, wanted in zip(predicted, gold, strict=True):
        found = found or {0}
        wanted = wanted or {0}
        values.append(2 * len(found & wanted) / (len(found) + len(wanted)))
    return one_class(values)


# -----------------------------------------------------------------------------
# Retrieval

DISCOUNT = 1 / np.log2(np.arange(2, 12))  # (10,), for ranks 1 to 10


def ranking(run, k):
    """Return the k best documents of a query's run as {document: score}, best first, in the order of trec_eval.

    Scores are compared in float32. Documents with equal scores are in reverse order of their ids.
    """
    scores = np.float32([*run.values()]).tolist()
    return {document: score for score, document in sorted(zip(scores, run), reverse=True)[:k]}


def best(scores, ids):
    """Return the `ranking` of the best 101 documents: 100 for recall@100, and one that may be the query itself.

    scores: (n,). ids: n document ids.
    """
    k = min(101, len(ids))
    least = np.partition(scores, -k)[-k]  # many documents may have this score
    return ranking({ids[i]: scores[i] for i in np.flatnonzero(scores >= least)}, k)


def gains(runs, grades):
    """Return the grades of each query's first 100 documents, (n, 100). Negative and missing grades are 0."""
    found = np.zeros((len(grades), 100))
    for row, run, grade_of in zip(found, runs, grades, strict=True):
        for rank, document in enumerate(ranking(run, 100)):
            row[rank] = max(0, grade_of.get(document, 0))
    return found


def retrieval(runs, grades):
    """Return {"ndcg@10": ..., "mrr@10": ..., "recall@100": ...}, instances (n, 1, 2) each, as trec_eval defines them.

    runs: for each query, {document id: score} of at least its best 100 documents, {} if none was found. grades: for
    each query, {document id: grade}. In nDCG, the gain is the grade and the discount log2(rank + 1). MRR is 0 without
    a relevant document in the first ten (trec_eval's recip_rank has no such limit). A query without relevant documents
    scores 0.
    """
    gain = gains(runs, grades)  # (n, 100)
    ideal = gains(grades, grades)[:, :10]
    n_relevant = [sum(grade > 0 for grade in grade_of.values()) for grade_of in grades]
    ten = gain[:, :10]
    reciprocal_ranks = (ten > 0) / np.arange(1, 11)  # 0 where the document is not relevant
    return {
        "ndcg@10": one_class(ten @ DISCOUNT / np.maximum(1, ideal @ DISCOUNT)),
        "mrr@10": one_class(reciprocal_ranks.max(1)),
        "recall@100": one_class((gain > 0).sum(1) / np.maximum(1, n_relevant)),
    }


def ndcg_retrieved(runs, grades):
    """The paper's nDCG@10: the DCG over that of the best order of the same ten documents, as instances (n, 1, 2).

    The gain of a document is 1 if its grade is above 0. The metric is 0 if none of the ten is relevant. Relevant
    documents that were not retrieved cost nothing. Arguments are those of `retrieval`, but in the paper, runs contain
    only judged documents.
    """
    gain = gains(runs, grades)[:, :10] > 0
    best_order = np.sort(gain)[:, ::-1]
    return one_class(gain @ DISCOUNT / np.maximum(1, best_order @ DISCOUNT))


def retrieval_scores(runs, queries):
    """Return {metric: instances} for retrieval. If a test set has a name, its metrics begin with it and a slash.

    runs: for each Query, {"judged": its run over the judged documents}, maybe with "corpus": its run over all. The
    paper's metric uses the first run, the field's metrics the second.
    """
    sets = {}  # {name: [(a query's runs, its grades), ...]}
    for run, query in zip(runs, queries, strict=True):
        sets.setdefault(query.set, []).append((run, query.grades))
    scores = {}
    for name, part in sets.items():
        runs, grades = zip(*part)
        found = {"ndcg@10_judged": ndcg_retrieved([run["judged"] for run in runs], grades)}
        if "corpus" in runs[0]:
            found |= retrieval([run["corpus"] for run in runs], grades)
        for metric, instances in found.items():
            scores[in_set(name, metric)] = instances
    return scores
