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
    numerators, denominators = np.moveaxis(sums, -1, 0)
    counted = denominators > 0
    ratios = numerators / np.where(counted, denominators, np.inf)
    return 100 * (ratios.sum(-1) / np.maximum(counted.sum(-1), 1))


def in_set(name, what):
    """Put the name of one of several test sets before the name of a metric or the number of an example."""
    return f"{name}/{what}" if name else what


def main_of(main, kind="field"):
    """Return the names of the metrics whose mean is a task's score. kind: "field" or "paper".

    They are the paper's also if the field has none. main: see `splits.Dataset`.
    """
    return main[kind] or main["paper"]


def mean_score(scores, names):
    """Return the mean of some metrics of {metric: percentage}, of those that there are."""
    values = [scores[name] for name in names if name in scores]
    if not np.isfinite(values).all():
        raise ValueError(f"the metric's values are {values}, must be finite numbers")
    return sum(values) / len(values)


def rounded(score, digits=1):
    """Round a score for text, to 0.0 and never to -0.0."""
    return round(float(score), digits) + 0.0


def one_class(numerators, denominators=1.0):
    """Return the instances (n, 1, 2) of a metric of one class. numerators: (n,). denominators: (n,), or one for all."""
    return np.stack(np.broadcast_arrays(numerators, denominators), -1)[:, None].astype(np.float64)


def scores(family, predicted, examples, labels):
    """Compute the metrics {name: instances} of sc, tc or qa; of qa without token_set_f1, which compares tokens.

    predicted: for each example a label, tags or an answer.
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
    """Per text: 1 if it is right, over 1. A gold label that training did not have counts as an error."""
    return one_class([p == g for p, g in zip(predicted, gold, strict=True)])


def f1(predicted, gold, labels):
    """Per text and class: 2 if the class is both predicted and gold, over 0, 1 or 2: in how many of the two it occurs.

    With two labels, only the second, the positive class, counts (C = 1). With more, all count alike (macro F1,
    C = len(labels)). A gold label outside `labels` makes the text a false positive of the predicted class.
    """
    counted = np.array(labels[1:] if len(labels) == 2 else labels, object)
    p = np.array(predicted, object)[:, None] == counted  # (n, C)
    g = np.array(gold, object)[:, None] == counted
    return np.stack((2.0 * (p & g), 1.0 * p + g), -1)


def correlation(predicted, gold):
    """Pearson's correlation, n instances (n, 1, 2) like all others: z_p * z_g over (z_p² + z_g²) / 2.

    z_p and z_g are the predicted and the gold numbers in standard deviations from their means. The denominators sum to
    n. They also make resamples of the instances vary as the correlation does: numerator - score * denominator is its
    influence function. If all numbers are equal the score is 0.
    """
    z = np.array([predicted, gold], np.float64)  # (2, n)
    z -= z.mean(1, keepdims=True)
    std = z.std(1, keepdims=True)
    std[std == 0] = 1
    z_p, z_g = z / std
    return one_class(z_p * z_g, (z_p**2 + z_g**2) / 2)


def ranks(values):
    """The rank of each value, from 1; equal values have the mean of their ranks."""
    ordered = np.sort(values)
    lower = np.searchsorted(ordered, values)
    upper = np.searchsorted(ordered, values, "right")
    return (lower + 1 + upper) / 2


def text_scores(predicted, gold, labels):
    """Compute all metrics of sequence classification, or of regression if there are no labels.

    Spearman's correlation is Pearson's of the ranks. Matthews' correlation of two labels is Pearson's of 0 and 1. There
    a gold label that training did not have counts as the label that was not predicted.
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

    It counts as conlleval (Tjong Kim Sang) and its ports count chunks, also if the tags break their scheme (IOB1, BIO,
    IOE, BIOES). A tag other than O begins an entity if its prefix is B or S, if the type changes, or if the tag before
    is O, E or S; else the entity goes on. So I-PER after O or after B-LOC begins an entity.
    """
    found = []
    last_prefix = "O"
    last_kind = ""
    for i, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if prefix != "O":
            begin = i
            if prefix not in "BS" and last_prefix not in "OES" and last_kind == kind:  # the entity goes on
                _, begin, _ = found.pop()
            found.append((kind, begin, i + 1))
        last_prefix = prefix
        last_kind = kind
    return found


def entity_f1(predicted, gold):
    """Per sentence of tags: 2 * entities right in type and both ends, over predicted + gold entities.

    Its score is conlleval's FB1, micro-averaged over types.
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
    """The paper's metric: per sentence of tags (never empty) the mean F1 of the tags that occur in it, over 1.

    A tag occurs if it is the predicted or gold tag of a word. O is a tag like others, and B-PER and I-PER are two.
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
    """Normalize a text as SQuAD's scripts do: lower case, then no punctuation, then no articles, single spaces."""
    text = text.lower().translate(NO_PUNCTUATION)
    return " ".join(ARTICLES.sub(" ", text).split())


def word_f1(a, b):
    """Compute the F1, 0 to 1, of the words of two normalized texts, as multisets; 0 if both texts are empty."""
    a = Counter(a.split())
    b = Counter(b.split())
    return 2 * (a & b).total() / max(1, a.total() + b.total())


def squad(predicted, gold):
    """Compute SQuAD's metrics as its official scripts do: {"exact_match": ..., "f1": ...}, instances (n, 1, 2) each.

    predicted: texts, "" for no answer. gold: for each question the texts of its answers, none if it is unanswerable.
    Per question: the best value over its answers, over 1.

    A set with an unanswerable question is scored as by the script of v2.0: answers that normalize to nothing are
    dropped, and if none is left, only a prediction that normalizes to nothing is right. Any other set is scored as by
    the script of v1.1, which does not treat them apart.
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
    """The paper's metric: per question the F1 of two sets of token positions, over 1. An empty set counts as {0}, so an
    unanswerable question without a predicted token scores 1."""
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
    """Return {document: score} of the k best documents of a query's run, the best first, in trec_eval's order.

    The scores count in float32. Documents of equal score are in reverse order of their ids.
    """
    scores = np.float32([*run.values()]).tolist()
    return {document: score for score, document in sorted(zip(scores, run), reverse=True)[:k]}


def best(scores, ids):
    """Return the `ranking` of the best of n documents: the 100 that recall counts, and one that may be the query's own.

    scores: (n,). ids: of the documents.
    """
    k = min(101, len(ids))
    least = np.partition(scores, -k)[-k]  # many documents may have this score
    return ranking({ids[i]: scores[i] for i in np.flatnonzero(scores >= least)}, k)


def gains(runs, grades):
    """Return the grades of each query's first 100 documents: (n, 100), negative and missing ones as 0."""
    found = np.zeros((len(grades), 100))
    for row, run, grade_of in zip(found, runs, grades, strict=True):
        for rank, document in enumerate(ranking(run, 100)):
            row[rank] = max(0, grade_of.get(document, 0))
    return found


def retrieval(runs, grades):
    """Compute {"ndcg@10": ..., "mrr@10": ..., "recall@100": ...}, instances (n, 1, 2) each, as trec_eval does.

    runs: for each query {document id: score} of its best 100 documents at least, {} if none was found. grades: for each
    query {document id: grade}. In nDCG the gain is the grade and the discount log2(rank + 1). MRR is 0 if no relevant
    document is among the first ten (trec_eval's recip_rank has no such cut). A query without a relevant document has 0.
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
    """The paper's nDCG@10, instances (n, 1, 2): the DCG over that of the best order of the same ten documents.

    The gain of a document is 1, whatever its grade above 0. The result is 0 if none of the ten is relevant. Relevant
    documents that were not retrieved cost nothing. The paper ranks only judged documents; the caller makes the runs,
    and sees to that. Arguments and instances are those of `retrieval`.
    """
    gain = gains(runs, grades)[:, :10] > 0
    best_order = np.sort(gain)[:, ::-1]
    return one_class(gain @ DISCOUNT / np.maximum(1, best_order @ DISCOUNT))


def retrieval_scores(runs, queries):
    """Compute all metrics of retrieval; those of a named set have its name and a slash before their own.

    runs: for each Query {"judged": its run over the judged documents, and maybe "corpus": that over the corpus}. The
    paper's metric is that of the first, the field's are those of the second.
    """
    sets = {}  # {name: of each query its runs and grades}
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
