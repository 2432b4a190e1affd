"""Simple methods that a fine-tuned encoder has to beat.

    sc   majority     the most frequent class, or number, of the training set
         tfidf        logistic regression, or ridge regression, on TF-IDF of words (scikit-learn)
    tc   word         the most frequent tag of each word in the training set
    qa   no_answer    always "no answer"; only where the test set has unanswerable questions
    ir   bm25         BM25 (bm25s)

scikit-learn and bm25s are optional. Without them `baselines` leaves their scores out and says so.
"""

from collections import Counter

from errors import progress
from eval.tasks import metrics
from eval.tasks.readers import by_set

WORD = r"\w+"
# Words that say little about the topic of a text: Lucene's stop words, and the words that questions begin with.
STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these they this "
    "to was will with what which who whom whose when where why how do does did"
).split()


def baselines(dataset):
    """Return {baseline: {metric: score in percent}} on the test set of a Dataset. The result is deterministic.

    With several retrieval sets, the name of a set and a slash precede the metric's name.
    """
    scores = {}
    for name, method in METHODS[dataset.family].items():
        if name == "no_answer" and all(question.answers for question in dataset.test):
            continue
        try:
            instances = metrics.scores(dataset.family, method(dataset), dataset.test, dataset.labels)
        except ImportError as error:
            print(f"The baseline {name} is left out: {error}. Its package is in requirements-extra.txt")
        else:
            scores[name] = {metric: metrics.score(values) for metric, values in instances.items()}
    return scores


def majority(dataset):
    counts = Counter(example.label for example in dataset.train)
    label, _ = counts.most_common(1)[0]
    return [label] * len(dataset.test)


def tfidf(dataset):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=WORD)
    features = vectorizer.fit_transform([example.text for example in dataset.train])
    model = LogisticRegression(max_iter=1000) if dataset.labels else Ridge()
    model.fit(features, [example.label for example in dataset.train])
    return model.predict(vectorizer.transform([example.text for example in dataset.test])).tolist()


def most_frequent_tag(dataset):
    counts = Counter()
    for example in dataset.train:
        counts.update(zip(example.words, example.tags))
    best = {}
    for (word, tag), _ in counts.most_common():
        best.setdefault(word, tag)
    return [[best.get(word, "O") for word in example.words] for example in dataset.test]


def no_answer(dataset):
    return [""] * len(dataset.test)  # "" stands for no answer


def bm25_runs(dataset):
    """Return the runs of all queries, as `metrics.retrieval_scores` takes them."""
    runs = []
    for queries in by_set(dataset.test).values():
        texts = [query.text for query in queries]
        corpus = dataset.corpora[queries[0].corpus]
        runs += dataset.search(queries, corpus, lambda ids, _: bm25(texts, {id: corpus[id] for id in ids}))
    return runs


def bm25(queries, corpus):
    """Return {document id: score} for each query: of its best documents, and only of those that share a word with it.

    queries: texts. corpus: {document id: text}. The formula is Lucene's; k1 and b are Anserini's defaults, but words
    are not stemmed. Stop words do not count.
    """
    import bm25s

    options = dict(token_pattern=WORD, stopwords=STOP_WORDS, show_progress=False)
    ids = list(corpus)
    texts = progress(corpus.values(), "BM25", unit=" documents", unit_scale=True, delay=3, leave=False)
    tokens = bm25s.tokenize(texts, **options)
    if not any(tokens.ids):  # all texts are empty, or there is none
        return [{} for _ in queries]
    index = bm25s.BM25(k1=0.9, b=0.4, method="lucene")
    index.index(tokens, show_progress=False)
    runs = []
    for words in bm25s.tokenize(queries, return_ids=False, **options):
        found = metrics.best(index.get_scores_from_ids(index.get_tokens_ids(words)), ids)
        runs.append({document: score for document, score in found.items() if score > 0})
    return runs


METHODS = {  # each takes a Dataset and returns what it predicts for each test example, see `metrics.scores`
    "sc": {"majority": majority, "tfidf": tfidf},
    "tc": {"word": most_frequent_tag},
    "qa": {"no_answer": no_answer},
    "ir": {"bm25": bm25_runs},
}
