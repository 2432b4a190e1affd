"""What a fine-tuned encoder has to beat: predictions that ignore the text or look at one word at a time.

    sc   majority     the most frequent class, or number, of the training set
    tc   word         the most frequent tag of each word in the training set
    qa   no_answer    always "no answer"; only where the test set has unanswerable questions

docs/finetuning.md has BM25 in a few lines.
"""

from collections import Counter

from eval.tasks import metrics


def baselines(dataset):
    """Return {baseline: {metric: score in percent}} on the test set of a Dataset."""
    train = dataset.train
    test = dataset.test
    if dataset.family == "sc":
        ((label, _),) = Counter(example.label for example in train).most_common(1)
        name = "majority"
        predicted = [label] * len(test)
    elif dataset.family == "tc":
        name = "word"
        counts = Counter()
        for sentence in train:
            counts.update(zip(sentence.words, sentence.tags))
        best = {word: tag for (word, tag), _ in reversed(counts.most_common())}  # the most frequent tag stays
        predicted = [[best.get(word, "O") for word in sentence.words] for sentence in test]
    elif dataset.family == "qa" and not all(question.answers for question in test):
        name = "no_answer"
        predicted = [""] * len(test)  # "" stands for no answer
    else:
        return {}
    instances = metrics.scores(dataset.family, predicted, test, dataset.labels)
    return {name: {metric: metrics.score(values) for metric, values in instances.items()}}
