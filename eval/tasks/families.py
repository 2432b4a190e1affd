"""The four task families: how an example becomes texts for the encoder, the loss of a batch, and the scores of a split.

Text templates, heads and metrics follow arXiv 2507.00994 ("the paper"). Where its metric is not the field's usual one,
both are computed (eval/tasks/metrics.py).
"""

from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from data.loader import to_device
from errors import progress
from eval.tasks import metrics
from eval.tasks.hub_encoder import engine_of
from eval.tasks.readers import SPLITS, Pair, by_set


class Item(NamedTuple):
    """One text for the encoder."""

    ids: list  # token ids, eos last
    target: object  # sc: index of the label; tc, qa: class of each token, -1 = no class; ir: the text itself
    extra: object = None  # for scoring; tc: the number of each token's word; qa: see QuestionAnswering.items


class Answer(NamedTuple):
    """What a model predicts for one example."""

    predicted: object  # sc: a label; tc: the tag of each word; qa: a text, "" for no answer; ir: ids of documents
    score: object  # sc: probability (None for a number); tc: one for each word; qa: see QuestionAnswering; ir: cosines
    extra: object = None  # for the metrics; qa: see QuestionAnswering.best_spans; ir: see metrics.retrieval_scores


class Family:
    """What the four families share.

    Each has `n_outputs`, the width of its head; `items(example, split)`, the Items of an example; `loss(output,
    items)`, the mean loss of a batch; and `answers(outputs, items, examples)`, the Answer to each example.
    During training, validation calls them with split=None.
    """

    threshold = 0.0  # for both, see QuestionAnswering
    may_be_none = False
    too_long = "texts cut to {} tokens"

    def __init__(self, dataset, tokenizer, max_len, temperature, protocol):
        self.dataset = dataset
        self.labels = dataset.labels
        self.index = {label: i for i, label in enumerate(dataset.labels)}
        self.n_outputs = len(dataset.labels) or 1
        self.tokenizer = tokenizer
        self.max_len = max_len
        self.temperature = temperature
        self.protocol = protocol

    def count_too_long(self):
        """Count the texts of each split and corpus that have more than max_len tokens, in the Dataset's `counts`.

        A token has at least one byte, so a text of fewer bytes need not be tokenized.
        """
        parts = {split: getattr(self.dataset, split) for split in SPLITS}
        for name, corpus in self.dataset.corpora.items():
            # The folder's name only, so that result.json does not depend on where the data are.
            parts[f"corpus of {name.split('/')[-2]}"] = map(partial(Pair, ""), corpus.values())
        max_len = self.max_len
        self.max_len = 2**31
        for name, examples in parts.items():
            n = 0
            for example in progress(examples, name, delay=3, leave=False):
                if len(repr(example).encode()) > max_len:
                    for item in self.items(example, name):
                        n += len(item.ids) > max_len
            self.dataset.counts[f"{name}: {self.too_long.format(max_len)}"] = n
        self.max_len = max_len

    def finish(self, model):
        """Change a TaskModel after training, if the family needs it."""

    def choose_threshold(self, outputs, items, examples):
        """Choose `threshold` on validation data, if the family has one."""

    def truncate(self, ids):
        """Return the first max_len - 1 ids and an eos."""
        return ids[: self.max_len - 1] + [self.tokenizer.eos_id]

    def predict(self, forward, examples, split):
        """Return the Answer to each example. forward: maps a list of Items to their outputs; see model.predict."""
        items = [item for example in examples for item in self.items(example, split)]
        outputs = forward(items)
        if split in (None, "validation"):
            self.choose_threshold(outputs, items, examples)
        return self.answers(outputs, items, examples)

    def metrics(self, answers, examples):
        """Return {metric: instances}, see eval/tasks/metrics.py."""
        return metrics.scores(self.dataset.family, [answer.predicted for answer in answers], examples, self.labels)


class SequenceClassification(Family):
    """Classify a text. Without labels this is regression: one output, trained with the mean squared error.

    In training, labels are standardized with the mean and standard deviation of the training set, so the loss starts
    near 1 whatever they measure. `finish` folds both into the head.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.mean = 0.0
        self.std = 1.0
        if dataset.train and not self.labels:
            numbers = [example.label for example in dataset.train]
            self.mean = float(np.mean(numbers))
            self.std = float(np.std(numbers))

    def items(self, example, split):
        ids = self.truncate(self.tokenizer.encode(example.text))
        if self.labels:
            return [Item(ids, self.index.get(example.label, -1))]
        return [Item(ids, (example.label - self.mean) / self.std)]

    def loss(self, output, items):
        """output: (n, classes), or (n, 1)."""
        target = to_device(torch.tensor([item.target for item in items]), output.device)
        if self.labels:
            return F.cross_entropy(output, target)
        return F.mse_loss(output[:, 0], target)

    @torch.no_grad()
    def finish(self, model):
        """In regression, rescale the head's last layer so that it predicts labels in their own units."""
        if not self.labels:
            last = model.head[-1]
            last.weight *= self.std
            last.bias.mul_(self.std).add_(self.mean)

    def answers(self, outputs, items, examples):
        if not self.labels:
            return [Answer(float(number), None) for (number,) in outputs]
        return [Answer(self.labels[p.argmax()], p.max()) for p in softmax(np.stack(outputs))]


class TokenClassification(Family):
    too_long = "sentences cut to {} tokens, whose other words count as O"

    def items(self, example, split):
        """Encode each word, also the first, as if after a space. A word without tokens becomes an eos."""
        prefix = self.tokenizer.word_prefix
        ids = []
        word_of = []  # the number of each token's word
        for i, word in enumerate(example.words):
            tokens = self.tokenizer.encode(prefix + word) or [self.tokenizer.eos_id]
            ids += tokens
            word_of += [i] * len(tokens)
        ids = self.truncate(ids)
        word_of = np.array(word_of[: len(ids) - 1])
        classes = np.array([self.index.get(tag, -1) for tag in example.tags])
        return [Item(ids, np.append(classes[word_of], -1), word_of)]  # the last eos has no tag

    def loss(self, output, items):
        """output: (tokens of all items, classes)."""
        target = to_device(torch.from_numpy(np.concatenate([item.target for item in items])), output.device)
        return F.cross_entropy(output, target, ignore_index=-1)

    def answers(self, outputs, items, examples):
        """Tag each word by a majority vote of its tokens; in a tie, the tag that is first in `labels` wins.

        The score is the mean probability of that tag over the tokens. A word that was cut off is O, with score 0.
        """
        answers = []
        for logits, item, example in zip(outputs, items, examples):
            best = logits.argmax(-1)
            probability = softmax(logits)
            tags = ["O"] * len(example.words)
            score = [0.0] * len(example.words)
            for word in set(item.extra):
                tokens = np.flatnonzero(item.extra == word)
                tag = np.bincount(best[tokens]).argmax()
                tags[word] = self.labels[tag]
                score[word] = probability[tokens, tag].mean(dtype=float)
            answers.append(Answer(tags, score))
        return answers


class QuestionAnswering(Family):
    """Classify each token as inside or outside the answer. The question and eos are outside, as in the paper.

    The prediction is the span of the context with the largest sum of (log-odds - threshold), and this sum is its score.
    If the training data have unanswerable questions, a prediction whose score is not positive is empty. Few tokens are
    in an answer, so an unsure model gives all of them low odds. The threshold that is best on the validation set, by
    F1, makes up for this.
    """

    prompt = "Question: {}\nContext: "
    thresholds = [x / 2 for x in range(4, -17, -1)]
    too_long = (
        "questions with their contexts longer than {} tokens, read in windows (in training only in one), and the "
        "question cut if it fills more than half of one"
    )
    loss = TokenClassification.loss

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.n_outputs = 2
        self.encode = lru_cache(self.tokenizer.encode_with_offsets)  # several questions in a row may share a context
        self.may_be_none = any(not question.answers for question in dataset.train)

    def items(self, example, split):
        """Cut the context into windows that overlap by half. In training, keep one: it holds the most of the answer.

        An Item's `extra` is (where the window begins in the context, in tokens; the length of the prompt, in tokens;
        1 for each of the context's n tokens in the first gold answer, else 0; the character offsets (n, 2) of these
        tokens in the normalized context).
        """
        prompt = self.tokenizer.encode(self.prompt.format(example.question))
        context, offsets = self.encode(example.context)
        prompt = prompt[: max(self.max_len // 2, self.max_len - len(context) - 1)]  # whole if both fit
        offsets = np.asarray(offsets, np.int64).reshape(-1, 2)
        inside = np.zeros(len(offsets), np.int64)
        answer, start = (example.answers or [("", -1)])[0]
        if start >= 0:  # otherwise the answer is not in the context
            before = example.context[:start]
            begin = len(self.tokenizer.normalize(before))
            end = len(self.tokenizer.normalize(before + answer))
            inside[:] = (offsets[:, 1] > begin) & (offsets[:, 0] < end)
        room = self.max_len - len(prompt) - 1  # tokens left for the context
        step = max(1, room // 2)
        items = []
        for start in range(0, max(1, len(context) - room + step), step):  # 0, 20, 40, 60 if 40 of 100 tokens fit
            ids = prompt + context[start : start + room] + [self.tokenizer.eos_id]
            target = np.pad(inside[start : start + room], (len(prompt), 1))
            items.append(Item(ids, target, (start, len(prompt), inside, offsets)))
        if split != "train":
            return items
        return [max(items, key=lambda item: item.target.sum())]

    def choose_threshold(self, outputs, items, examples):
        """Set the threshold with the best F1; in a tie, the highest."""
        merged = self.merge_windows(outputs, items)
        f1 = {}  # {threshold: F1}
        for threshold in self.thresholds:
            self.threshold = threshold
            f1[threshold] = metrics.score(self.metrics(self.best_spans(merged, examples), examples)["f1"])
        self.threshold = max(f1, key=f1.get)

    def answers(self, outputs, items, examples):
        return self.best_spans(self.merge_windows(outputs, items), examples)

    def best_spans(self, merged, examples):
        """Return the Answers to questions. merged: what `merge_windows` returns.

        An Answer's `extra` is two sets of token positions: the predicted ones, and those of the first gold answer.
        """
        answers = []
        for (odds, prompt, inside, offsets), example in zip(merged, examples):
            text, score = self.best_span(odds[prompt:-1], offsets, self.tokenizer.normalize(example.context))
            tokens = set(np.flatnonzero(odds > 0)), set(np.flatnonzero(inside) + prompt)
            answers.append(Answer(text, score, tokens))
        return answers

    def metrics(self, answers, examples):
        predicted, gold = zip(*(answer.extra for answer in answers))
        return super().metrics(answers, examples) | {"token_set_f1": metrics.token_set_f1(predicted, gold)}

    def merge_windows(self, outputs, items):
        """Join the windows of each question. Where two overlap, the first one counts up to the middle of the overlap.

        Returns, for each question, the log-odds (N,) of its N tokens (prompt, context, eos), followed by the last three
        fields of `extra`.
        """
        merged = []
        for logits, item in zip(outputs, items):
            start, prompt, *context = item.extra
            odds = (logits[:, 1] - logits[:, 0]).astype(np.float64)
            if start > 0:  # a further window of the same context
                before, *_ = merged.pop()
                middle = (prompt + start + len(before) - 1) // 2  # without the eos of the windows before
                odds = np.append(before[:middle], odds[middle - start :])
            merged.append((odds, prompt, *context))
        return merged

    def best_span(self, odds, offsets, text):
        """Return the best span of a text ("" for no answer) and its score.

        odds: (n,), the tokens' log-odds. offsets: (n, 2), their places in the text, in characters.
        """
        if not len(odds):  # a blank context has no tokens
            return "", 0.0
        total = np.append(0, np.cumsum(odds - self.threshold))
        gain = total[1:] - np.minimum.accumulate(total[:-1])  # the best span's that ends at each token
        last = gain.argmax()
        if gain[last] <= 0 and self.may_be_none:
            return "", gain[last]
        first = total[: last + 1].argmin()
        return text[offsets[first, 0] : offsets[last, 1]].strip(), gain[last]


class InformationRetrieval(Family):
    """Embed queries and documents, and compare them by cosine or as a retriever's Protocol says.

    In training, a query's negatives are the other documents of the batch. The field's metrics rank the whole corpus, if
    the Dataset has it. The paper's metric ranks only documents that are judged for validation or test.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.vectors = {}  # {name of a corpus: the vectors of its documents}
        if self.protocol.own:
            self.engine = engine_of(self.tokenizer)

    def item(self, prompt, text):
        """Return a prompt and a text as an Item; an eos if they have no tokens."""
        if self.protocol.own:
            self.engine.enable_truncation(self.max_len)
            ids = self.engine.encode(prompt + text).ids or [self.tokenizer.eos_id]
        else:
            ids = self.truncate(self.tokenizer.encode(prompt + text))
        return Item(ids, text)

    def items(self, pair, split):
        return [self.item(self.protocol.query, pair.query), self.item(self.protocol.document, pair.document)]

    def loss(self, output, items):
        """Compute InfoNCE (van den Oord et al., 2018) over the batch. Copies of a query's document are not negatives.

        output: (2n, d_model), a query and its document in turn.
        """
        scores = output[::2] @ output[1::2].T / self.temperature  # (n, n)
        texts = np.array([item.target for item in items[1::2]], dtype=object)
        copy = torch.from_numpy(texts[:, None] == texts).fill_diagonal_(False)
        scores = scores.masked_fill(to_device(copy, scores.device), -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(texts), device=scores.device))

    def embed(self, forward, texts, chunk=2**15):
        """Return the vectors of documents, fp32 (documents, d_model). At most `chunk` texts are tokenized at a time."""
        vectors = None
        for begin in range(0, len(texts), chunk):
            outputs = forward([self.item(self.protocol.document, text) for text in texts[begin : begin + chunk]])
            if vectors is None:  # filled in place: a large corpus may not fit in memory twice
                vectors = np.empty((len(texts), len(outputs[0])), np.float32)
            vectors[begin : begin + chunk] = outputs
        return vectors

    def predict(self, forward, queries, split):
        """Like Family.predict. Each corpus is embedded once. While the model still trains (split=None), only the
        documents that are judged for these queries are embedded, each time anew."""
        answers = []
        for part in by_set(queries).values():
            name = part[0].corpus
            corpus = self.dataset.corpora[name]
            vectors = self.vectors
            if split is None:
                corpus = {id: corpus[id] for query in part for id in query.grades if id in corpus}
                vectors = {}
            if name not in vectors:
                vectors[name] = self.embed(forward, list(corpus.values()))
            outputs = forward([self.item(self.protocol.query, query.text) for query in part])
            find = partial(nearest_documents, np.stack(outputs), vectors[name])
            for run in self.dataset.search(part, corpus, find):
                ten = metrics.ranking(run.get("corpus", run["judged"]), 10)
                answers.append(Answer([*ten], [*ten.values()], run))
        return answers

    def metrics(self, answers, queries):
        return metrics.retrieval_scores([answer.extra for answer in answers], queries)


def softmax(logits):
    """Return the probabilities of logits (n, classes)."""
    return torch.from_numpy(logits).softmax(-1).numpy()


def nearest_documents(queries, documents, ids, rows, memory=2**28):
    """Return {document id: dot product} for each query and its best documents; see `metrics.best`.

    queries: (n, d). documents: (m, d). rows: which documents are compared. ids: their ids. memory: how many products
        are computed at a time.
    """
    if not ids:
        return [{} for _ in queries]
    documents = torch.from_numpy(documents[rows])
    parts = torch.from_numpy(queries).split(max(1, memory // len(documents)))
    return [metrics.best(products, ids) for part in parts for products in (part @ documents.T).numpy()]


def subsample(examples, n):
    """Return n evenly spaced examples of each set, or all of them if there are fewer."""
    kept = []
    for part in by_set(examples).values():
        size = min(n, len(part))
        kept += [part[i * len(part) // size] for i in range(size)]
    return kept


FAMILIES = dict(sc=SequenceClassification, tc=TokenClassification, qa=QuestionAnswering, ir=InformationRetrieval)
