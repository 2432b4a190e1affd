"""The four task families: how an example becomes texts for the encoder, the loss of a batch, and the scores of a split.

Text templates, heads and both sets of metrics follow the protocol of arXiv 2507.00994. Where that paper's metric is not
the field's usual one, both are computed (eval/tasks/metrics.py).
"""

import json
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from eval.tasks import metrics
from eval.tasks.readers import by_set
from runtime import to_device


class Item(NamedTuple):
    """One text for the encoder."""

    ids: list  # its token ids, eos last
    target: object  # sc: index of the label; tc, qa: class of each token, tc: -1 = none; ir: the document's text
    extra: object = None  # what scoring needs; tc: the word of each token; qa: see QuestionAnswering.items


class Answer(NamedTuple):
    """What a model predicts for one example."""

    predicted: object  # sc: a label; tc: the tag of each word; qa: a text, "" for no answer; ir: ids of documents
    score: object  # sc: its probability (None for a number); tc: of each word; qa: see QuestionAnswering; ir: cosines
    extra: object = None  # what the metrics need; qa: see QuestionAnswering.answers; ir: see metrics.retrieval_scores

    def line(self, id, **gold):
        """Return a line of predictions.jsonl as bytes, the score with six digits after the point."""
        score = self.score
        if score is not None:
            score = np.round(np.float64(score), 6).tolist()
        record = dict(id=id, **gold, predicted=self.predicted, score=score)
        text = json.dumps(record, ensure_ascii=False) + "\n"
        return text.encode(errors="backslashreplace")  # half a surrogate pair is escaped, as UTF-8 has none


class Family:
    """What the four families have in common.

    Each has `n_outputs`, the width of its head; `items(example, split)`, the texts of an example; `loss(output,
    items)`, the mean loss of a batch; and `answers(outputs, items, examples, split)`, the Answer to each example.
    The split is None in validations during training. temperature, full_corpus: see InformationRetrieval.
    """

    threshold = 0.0  # these two: see QuestionAnswering
    may_be_none = False

    def __init__(self, dataset, tokenizer, max_len, temperature=0.05, full_corpus=True):
        self.family = dataset.family
        self.labels = dataset.labels
        self.index = {label: i for i, label in enumerate(dataset.labels)}
        self.n_outputs = len(dataset.labels) or 1
        self.tokenizer = tokenizer
        self.max_len = max_len
        self.temperature = temperature
        self.full_corpus = full_corpus

    def finish(self, model):
        """Do what is left to do with a TaskModel when training has ended."""

    def truncate(self, ids):
        """Append eos to a list of ids, of which at most max_len - 1 stay."""
        return ids[: self.max_len - 1] + [self.tokenizer.eos_id]

    def predict(self, forward, examples, split):
        """Return the Answer to each example. forward: from a list of n Items to their n outputs, see model.predict."""
        items = [item for example in examples for item in self.items(example, split)]
        return self.answers(forward(items), items, examples, split)

    def metrics(self, answers, examples):
        """Return {metric: instances}, see eval/tasks/metrics.py."""
        return metrics.scores(self.family, [answer.predicted for answer in answers], examples, self.labels)

    def lines(self, answers, examples):
        """Yield a line of predictions.jsonl for each example, with its id or its number, from 1."""
        for number, (answer, example) in enumerate(zip(answers, examples), 1):
            name = getattr(example, "set", "")
            id = metrics.in_set(name, getattr(example, "id", number))
            yield answer.line(id, gold=example.gold)


class SequenceClassification(Family):
    """Classify a text. Without labels this is regression: one output, trained with the mean squared error.

    In training that output is the number minus the mean of all training labels, in units of their standard deviation,
    so that the loss is about 1 whatever they measure. `finish` puts both into the head.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.mean, self.std = 0.0, 1.0
        if dataset.train and not self.labels:
            numbers = [example.label for example in dataset.train]
            self.mean = float(np.mean(numbers))
            self.std = float(np.std(numbers))

    def items(self, example, split):
        ids = self.truncate(self.tokenizer.encode(example.text))
        if self.labels:
            target = self.index.get(example.label, -1)
        else:
            number = example.label or 0  # new text may have no label
            target = (number - self.mean) / self.std
        return [Item(ids, target)]

    def loss(self, output, items):
        """output: (n, classes), or (n, 1)."""
        target = torch.tensor([item.target for item in items])
        target = to_device(target, output.device)
        if self.labels:
            return F.cross_entropy(output, target)
        return F.mse_loss(output[:, 0], target)

    @torch.no_grad()
    def finish(self, model):
        """Let the head give numbers as the labels have them, when training has ended."""
        if not self.labels:
            last = model.head[-1]
            last.weight *= self.std
            last.bias.mul_(self.std).add_(self.mean)

    def answers(self, outputs, items, examples, split):
        logits = np.stack(outputs)
        if not self.labels:
            return [Answer(float(number), None) for (number,) in logits]
        probability = softmax(logits)
        answers = []
        for row, best in enumerate(logits.argmax(-1)):
            answers.append(Answer(self.labels[best], probability[row, best]))
        return answers


class TokenClassification(Family):
    def items(self, example, split):
        """Encode each word, the first too, as after a space. Each token has its word's tag as target."""
        tokens, word_of = [], []  # of each token, the number of its word
        for number, word in enumerate(example.words):
            text = self.tokenizer.word_prefix + word if word else ""
            found = self.tokenizer.encode(text)
            tokens += found
            word_of += [number] * len(found)
        ids = self.truncate(tokens)
        word_of = np.array(word_of[: len(ids) - 1], np.int64)
        target = np.full(len(ids), -1)  # eos keeps that
        if example.tags is not None:
            label = np.array([self.index.get(tag, -1) for tag in example.tags], np.int64)
            target[:-1] = label[word_of]
        return [Item(ids, target, word_of)]

    def loss(self, output, items):
        """output: (tokens of all items, classes)."""
        target = np.concatenate([item.target for item in items])
        target = to_device(torch.from_numpy(target), output.device)
        return F.cross_entropy(output, target, ignore_index=-1)

    def answers(self, outputs, items, examples, split):
        """A word has the tag of most of its tokens; in a tie, the first in `labels`. A word that was cut off is O.

        Its score is the mean probability of that tag over its tokens; 0 if it was cut off.
        """
        found = []
        for logits, item, example in zip(outputs, items, examples):
            word_of = item.extra
            n_words = len(example.words)
            votes = np.zeros((n_words, len(self.labels)))
            best = logits[:-1].argmax(-1)  # of each token but eos
            np.add.at(votes, (word_of, best), 1)
            chosen = votes.argmax(1)
            n_tokens = votes.sum(1)
            tags = [self.labels[i] for i in chosen]
            for word in np.flatnonzero(n_tokens == 0):
                tags[word] = "O"

            numbers = np.arange(len(word_of))
            p = softmax(logits)[numbers, chosen[word_of]]  # of each token, of its word's tag
            total = np.bincount(word_of, p, minlength=n_words)
            score = total / np.maximum(1, n_tokens)
            found.append(Answer(tags, score))
        return found


class QuestionAnswering(Family):
    """Classify each token as inside or outside the answer. Those of the question and eos are outside, as in the paper.

    The predicted answer is the span of the context with the largest sum of log-odds - threshold, which is its score. If
    the training data have questions without an answer, the prediction is empty where that sum is not positive. Answers
    are rare among tokens, so an unsure model gives low odds to all of them. The threshold is therefore chosen on the
    validation set, by F1.
    """

    prompt = "Question: {}\nContext: "
    thresholds = [x / 2 for x in range(4, -17, -1)]
    loss = TokenClassification.loss

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.n_outputs = 2
        self.may_be_none = any(not question.answers for question in dataset.train)

    def items(self, example, split):
        """Cut the context into windows that overlap by half. In training, take the first that holds the answer.

        The prompt and the context are tokenized apart, as in the paper. An Item's `extra` is (tokens of the prompt
        before the context, the window's first token in the context, character offsets (n, 2) of the context's n tokens
        in the text, the text: normalize(context)).
        """
        prompt = self.tokenizer.encode(self.prompt.format(example.question))
        prompt = prompt[: self.max_len // 2]
        context, offsets = self.tokenizer.encode_with_offsets(example.context)
        offsets = np.asarray(offsets, np.int64).reshape(-1, 2)
        text = self.tokenizer.normalize(example.context)
        inside = self.inside_answer(example, offsets)
        room = self.max_len - len(prompt) - 1  # for the context, beside the prompt and eos
        starts = [0]  # the first token of each window; with room for 40 of 100 tokens: 0, 20, 40, 60
        while starts[-1] + room < len(context):
            starts.append(starts[-1] + room // 2)
        items = []
        for start in starts:
            window = slice(start, start + room)
            ids = prompt + context[window] + [self.tokenizer.eos_id]
            target = np.pad(inside[window], (len(prompt), 1))
            items.append(Item(ids, target, (len(prompt), start, offsets, text)))
        if split != "train":
            return items
        for item in items:
            if item.target.sum() == inside.sum():
                return [item]
        return items[:1]

    def inside_answer(self, example, offsets):
        """Mark the context's n tokens that overlap the first gold answer: int64 (n,), 1 or 0."""
        inside = np.zeros(len(offsets), np.int64)
        answer, start = example.answers[0] if example.answers else ("", -1)
        if start == -1:  # the context does not hold the answer's text
            return inside
        before = example.context[:start]
        begin = len(self.tokenizer.normalize(before))
        end = len(self.tokenizer.normalize(before + answer))
        ends_after_begin = offsets[:, 1] > begin
        begins_before_end = offsets[:, 0] < end
        inside[ends_after_begin & begins_before_end] = 1
        return inside

    def answers(self, outputs, items, examples, split):
        """Each Answer's `extra` is the positions of the predicted tokens, and of those in the first gold answer."""
        texts = self.merge_windows(outputs, items)

        def best_spans(threshold):
            spans = []
            for (odds, _), first, offsets, text in texts:
                spans.append(self.best_span(odds[first:-1], offsets, text, threshold))
            return spans

        def f1(threshold):
            predicted = [text for text, _ in best_spans(threshold)]
            return metrics.score(metrics.squad(predicted, examples)["f1"])

        if split in (None, "validation"):
            self.threshold = max(self.thresholds, key=f1)
        answers = []
        for (text, score), (tokens, *_) in zip(best_spans(self.threshold), texts):
            predicted, gold = (set(np.flatnonzero(x > 0)) for x in tokens)
            answers.append(Answer(text, score, (predicted, gold)))
        return answers

    def metrics(self, answers, examples):
        predicted = [answer.extra[0] for answer in answers]
        gold = [answer.extra[1] for answer in answers]
        paper = metrics.token_set_f1(predicted, gold)
        return super().metrics(answers, examples) | {"token_set_f1": paper}

    def merge_windows(self, outputs, items):
        """Put the windows of each context together: of two that overlap, the first counts up to the overlap's middle.

        Returns one tuple for each question: log-odds of the N tokens of prompt, context and eos, above whether they are
        in the first gold answer: (2, N); the position of the context's first token; offsets and text as in `items`.
        """
        merged = []
        for logits, item in zip(outputs, items):
            prompt, start, offsets, text = item.extra
            odds = logits[:, 1] - logits[:, 0]
            tokens = np.stack([odds, item.target])  # (2, tokens of the item)
            if start > 0:  # a further window of the same context
                before, *_ = merged.pop()
                overlap_start = prompt + start  # in the whole text
                overlap_end = before.shape[1] - 1  # where the eos of the windows before is
                middle = (overlap_start + overlap_end) // 2
                rest = tokens[:, middle - start :]
                tokens = np.concatenate([before[:, :middle], rest], 1)
            merged.append((tokens, prompt, offsets, text))
        return merged

    def best_span(self, odds, offsets, text, threshold):
        """Return the best span of a text, "" for no answer, and its score. odds: (n,), of the tokens at the offsets."""
        if not len(odds):  # a blank context has no tokens
            return "", 0.0
        total = np.cumsum(odds - threshold)
        total = np.append(0, total)
        lowest = np.minimum.accumulate(total[:-1])
        gain = total[1:] - lowest  # of the best span that ends at each token
        last = gain.argmax()
        if gain[last] <= 0 and self.may_be_none:
            return "", gain[last]
        first = total[: last + 1].argmin()
        begin, end = offsets[first, 0], offsets[last, 1]
        return text[begin:end].strip(), gain[last]


class InformationRetrieval(Family):
    """Embed queries and documents and compare them by cosine.

    In training, the other documents of a batch are each query's negatives, and cosines are divided by `temperature`.
    The field's metrics search the whole corpus. The paper's ranks only the documents that validation or test judge;
    without `full_corpus` it is the only one.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.corpora, self.judged = dataset.corpora, dataset.judged()
        self.vectors = {}  # {name of a corpus: the vectors of its documents}

    def query(self, text):
        return Item(self.truncate(self.tokenizer.encode(f"Query: {text}")), None)

    def document(self, text):
        return Item(self.truncate(self.tokenizer.encode(f"Document: {text}")), text)

    def items(self, pair, split):
        return [self.query(pair.query), self.document(pair.document)]

    def loss(self, output, items):
        """InfoNCE (van den Oord et al., 2018) over the batch. A second copy of a query's document is no negative.

        output: (2n, d_model), query and document in turn.
        """
        output = F.normalize(output, dim=-1)
        query, document = output.unflatten(0, (-1, 2)).unbind(1)  # (n, d) each
        scores = query @ document.T / self.temperature  # (n, n)
        texts = [item.target for item in items[1::2]]
        texts = np.array(texts, dtype=object)
        copy = torch.from_numpy(texts[:, None] == texts)
        copy = to_device(copy.fill_diagonal_(False), scores.device)
        scores = scores.masked_fill(copy, -torch.inf)
        return F.cross_entropy(scores, torch.arange(len(texts), device=scores.device))

    def embed(self, forward, texts, chunk=2**15):
        """Embed documents: fp32 (documents, d_model). At most `chunk` texts are in memory as tokens."""
        vectors = None
        for begin in range(0, len(texts), chunk):
            part = slice(begin, begin + chunk)
            outputs = forward([self.document(text) for text in texts[part]])
            if vectors is None:  # at once: two copies of a large corpus may not fit into memory
                vectors = np.empty((len(texts), len(outputs[0])), np.float32)
            vectors[part] = outputs
        return vectors

    def documents(self, forward, queries, split):
        """Return the ids and the vectors of the documents that queries of one set search.

        They are the corpus, which is embedded once. In validations during training, when the model still changes, they
        are the documents judged for these queries.
        """
        name = queries[0].corpus
        corpus = self.corpora[name]
        if split is None:
            ids = {}  # in their order
            for query in queries:
                ids |= query.grades
            texts = [corpus[document] for document in ids]
            return list(ids), self.embed(forward, texts)
        if name not in self.vectors:
            self.vectors[name] = self.embed(forward, list(corpus.values()))
        return list(corpus), self.vectors[name]

    def predict(self, forward, queries, split):
        answers = []
        for part in by_set(queries).values():
            ids, vectors = self.documents(forward, part, split)
            outputs = forward([self.query(query.text) for query in part])
            outputs = np.stack(outputs)
            known = self.judged[part[0].corpus]
            judged = [i for i, document in enumerate(ids) if document in known]
            judged_ids = [ids[i] for i in judged]
            runs = [{"judged": run} for run in nearest_documents(outputs, vectors[judged], judged_ids)]
            if self.full_corpus:
                for run, whole in zip(runs, nearest_documents(outputs, vectors, ids)):
                    run["corpus"] = whole
            for run in runs:
                answers.append(ten_best(run))
        return answers

    def metrics(self, answers, queries):
        return metrics.retrieval_scores([answer.extra for answer in answers], queries)


def ten_best(run):
    """Return the Answer of a query: the ten best documents of its run, in the order that `metrics.gains` gives them."""
    found = run.get("corpus", run["judged"])
    ranking = sorted(found, key=lambda document: (found[document], document), reverse=True)
    best = ranking[:10]
    return Answer(best, [found[document] for document in best], run)


def softmax(logits):
    """Return the probabilities of logits (n, classes)."""
    return torch.from_numpy(logits).softmax(-1).numpy()


def nearest_documents(queries, documents, document_ids, k=100, chunk=2**16):
    """Find the k documents with the largest cosine for each query. Returns {document id: cosine} for each.

    queries: (n, d). documents: (m, d), of which `chunk` are compared at a time.
    """
    queries = F.normalize(torch.from_numpy(queries), dim=-1)
    best = torch.empty(len(queries), 0)
    index = torch.empty(len(queries), 0, dtype=torch.int64)
    for begin in range(0, len(documents), chunk):
        part = torch.from_numpy(documents[begin : begin + chunk])
        part = F.normalize(part, dim=-1)
        scores = queries @ part.T  # (n, chunk)
        numbers = torch.arange(begin, begin + len(part))
        best = torch.cat((best, scores), 1)
        index = torch.cat((index, numbers.expand_as(scores)), 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        index = index.gather(1, order)
    runs = []
    for numbers, scores in zip(index.tolist(), best.tolist()):
        ids = [document_ids[i] for i in numbers]
        runs.append(dict(zip(ids, scores)))
    return runs


def subsample(examples, n):
    """Return n of the examples of each set, spread evenly over them, or all if there are no more."""
    kept = []
    for part in by_set(examples).values():
        size = min(n, len(part))
        kept += [part[i * len(part) // size] for i in range(size)]
    return kept


FAMILIES = dict(sc=SequenceClassification, tc=TokenClassification, qa=QuestionAnswering, ir=InformationRetrieval)
