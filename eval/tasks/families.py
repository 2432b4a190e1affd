"""The four task families: how an example becomes texts for the encoder, the loss of a batch, and the scores of a split.

Text templates, heads and both sets of metrics follow the protocol of arXiv 2507.00994. Where that paper's metric is not
the field's usual one, both are computed (eval/tasks/metrics.py).
"""

import json
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from data.loader import to_device
from eval.tasks import metrics


class Item(NamedTuple):
    """One text for the encoder."""

    ids: list  # its token ids, eos last
    target: object  # sc: index of the label; tc, qa: class of each token, tc: -1 = none; ir: the document's text
    extra: object = None  # what scoring needs; tc: the word of each token; qa: see QuestionAnswering.items


class Answer(NamedTuple):
    """What a model predicts for one example."""

    predicted: object  # sc: a label; tc: the tag of each word; qa: a text, "" for no answer; ir: ids of documents
    score: object  # sc: its probability (None for a number); tc: of each word; qa: see QuestionAnswering; ir: cosines
    tokens: tuple = ()  # qa: the positions of the tokens that are predicted, and of those in the first gold answer

    def line(self, id, **gold):
        """Return a line of predictions.jsonl as bytes, the score with six digits after the point."""
        score = None if self.score is None else np.round(np.float64(self.score), 6).tolist()
        text = json.dumps(dict(id=id, **gold, predicted=self.predicted, score=score), ensure_ascii=False)
        return text.encode(errors="backslashreplace") + b"\n"  # half a surrogate pair is escaped, as UTF-8 has none


class Family:
    """What the four families have in common.

    Each has `n_outputs`, the width of its head; `items(example, split)`, the texts of an example; `loss(output,
    items)`, the mean loss of a batch; and `answers(outputs, items, examples, split)`, the Answer to each example.
    The split is None in validations during training. temperature, full_corpus: see InformationRetrieval.
    """

    threshold = 0.0  # see QuestionAnswering

    def __init__(self, dataset, tokenizer, max_len, temperature=0.05, full_corpus=True):
        self.family, self.labels = dataset.family, dataset.labels
        self.n_outputs = 2 if dataset.family == "qa" else len(dataset.labels) or 1
        self.index = {label: i for i, label in enumerate(dataset.labels)}
        self.tokenizer, self.max_len = tokenizer, max_len
        self.temperature, self.full_corpus = temperature, full_corpus
        self.may_be_none = dataset.family == "qa" and any(not question.answers for question in dataset.train)

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
            yield answer.line(getattr(example, "id", number), gold=example.gold)


class SequenceClassification(Family):
    """Classify a text. Without labels this is regression: one output, trained with the mean squared error.

    In training that output is the number minus the mean of all training labels, in units of their standard deviation,
    so that the loss is about 1 whatever they measure. `finish` puts both into the head.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        numbers = [] if self.labels else [example.label for example in dataset.train]
        self.mean, self.std = (float(np.mean(numbers)), float(np.std(numbers))) if numbers else (0.0, 1.0)

    def items(self, example, split):
        ids = self.truncate(self.tokenizer.encode(example.text))
        if self.labels:
            return [Item(ids, self.index.get(example.label, -1))]
        return [Item(ids, ((example.label or 0) - self.mean) / self.std)]  # new text may have no label

    def loss(self, output, items):
        """output: (n, classes), or (n, 1)."""
        target = to_device(torch.tensor([item.target for item in items]), output.device)
        return F.cross_entropy(output, target) if self.labels else F.mse_loss(output[:, 0], target)

    @torch.no_grad()
    def finish(self, model):
        """Let the head give numbers as the labels have them, when training has ended."""
        if not self.labels:
            model.head[-1].weight *= self.std
            model.head[-1].bias.mul_(self.std).add_(self.mean)

    def answers(self, outputs, items, examples, split):
        logits = np.stack(outputs)
        if not self.labels:
            return [Answer(float(number), None) for (number,) in logits]
        return [Answer(self.labels[i], p[i]) for i, p in zip(logits.argmax(-1), softmax(logits))]


class TokenClassification(Family):
    def items(self, example, split):
        """Encode each word, the first too, as after a space. Each token has its word's tag as target."""
        words = [self.tokenizer.encode(word and self.tokenizer.word_prefix + word) for word in example.words]
        ids = self.truncate([token for word in words for token in word])
        word_of = np.repeat(np.arange(len(words)), np.array([len(word) for word in words], int))[: len(ids) - 1]
        label = np.array([self.index.get(tag, -1) for tag in example.tags or [None] * len(words)] + [-1])
        return [Item(ids, label[np.append(word_of, -1)], word_of)]

    def loss(self, output, items):
        """output: (tokens of all items, classes)."""
        target = to_device(torch.from_numpy(np.concatenate([item.target for item in items])), output.device)
        return F.cross_entropy(output, target, ignore_index=-1)

    def answers(self, outputs, items, examples, split):
        """A word has the tag of most of its tokens; in a tie, the first in `labels`. A word that was cut off is O.

        Its score is the mean probability of that tag over its tokens; 0 if it was cut off.
        """
        found = []
        for logits, item, example in zip(outputs, items, examples):
            word_of, n_words = item.extra, len(example.words)
            votes = np.zeros((n_words, len(self.labels)))
            np.add.at(votes, (word_of, logits[:-1].argmax(-1)), 1)  # without that of eos
            chosen, n_tokens = votes.argmax(1), votes.sum(1)
            p = softmax(logits)[np.arange(len(word_of)), chosen[word_of]]  # of each token, of its word's tag
            score = np.bincount(word_of, p, minlength=n_words) / np.maximum(1, n_tokens)
            found.append(Answer([self.labels[i] if n else "O" for i, n in zip(chosen, n_tokens)], score))
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

    def items(self, example, split):
        """Cut the context into windows that overlap by half. In training, take the first that holds the answer.

        The prompt and the context are tokenized apart, as in the paper. An Item's `extra` is (tokens of the prompt
        before the context, the window's first token in the context, character offsets (n, 2) of the context's n tokens
        in the text, the text: normalize(context)).
        """
        prompt = self.tokenizer.encode(self.prompt.format(example.question))[: self.max_len // 2]
        context, offsets = self.tokenizer.encode_with_offsets(example.context)
        offsets = np.asarray(offsets, np.int64).reshape(-1, 2)
        text, inside = self.tokenizer.normalize(example.context), self.inside_answer(example, offsets)
        room = self.max_len - len(prompt) - 1  # for the context, beside the prompt and eos
        starts = [0]  # the first token of each window; with room for 40 of 100 tokens: 0, 20, 40, 60
        while starts[-1] + room < len(context):
            starts.append(starts[-1] + room // 2)
        if split == "train":
            whole = [start for start in starts if inside[start : start + room].sum() == inside.sum()]
            starts = whole[:1] or starts[:1]
        items = []
        for start in starts:
            ids = prompt + context[start : start + room] + [self.tokenizer.eos_id]
            target = np.pad(inside[start : start + room], (len(prompt), 1))
            items.append(Item(ids, target, (len(prompt), start, offsets, text)))
        return items

    def inside_answer(self, example, offsets):
        """Mark the context's n tokens that overlap the first gold answer: int64 (n,), 1 or 0."""
        inside = np.zeros(len(offsets), np.int64)
        answer, start = example.answers[0] if example.answers else ("", -1)
        if start >= 0:  # -1: the context does not hold the answer's text
            before, through = example.context[:start], example.context[: start + len(answer)]
            first, last = (len(self.tokenizer.normalize(text)) for text in (before, through))
            inside[(offsets[:, 1] > first) & (offsets[:, 0] < last)] = 1
        return inside

    def answers(self, outputs, items, examples, split):
        texts = self.merge_windows(outputs, items)

        def best_spans(threshold):
            return [self.best_span(odds[first:-1], *context, threshold) for (odds, _), first, *context in texts]

        def f1(threshold):
            return metrics.score(metrics.squad([text for text, _ in best_spans(threshold)], examples)["f1"])

        if split in (None, "validation"):
            self.threshold = max(self.thresholds, key=f1)
        positions = ((set(np.flatnonzero(odds > 0)), set(np.flatnonzero(inside))) for (odds, inside), *_ in texts)
        return [Answer(*span, tokens) for span, tokens in zip(best_spans(self.threshold), positions)]

    def metrics(self, answers, examples):
        paper = metrics.token_set_f1(*zip(*(answer.tokens for answer in answers)))
        return super().metrics(answers, examples) | {"token_set_f1": paper}

    def merge_windows(self, outputs, items):
        """Put the windows of each context together: of two that overlap, the first counts up to the overlap's middle.

        Returns one tuple for each question: log-odds of the N tokens of prompt, context and eos, above whether they are
        in the first gold answer: (2, N); the position of the context's first token; offsets and text as in `items`.
        """
        merged = []
        for logits, item in zip(outputs, items):
            prompt, start, offsets, text = item.extra
            tokens = np.stack([logits[:, 1] - logits[:, 0], item.target])  # (2, tokens of the item)
            if start > 0:  # a further window of the same context, in place of the eos of the windows before
                before = merged.pop()[0][:, :-1]
                overlap_start, overlap_end = prompt + start, before.shape[1]  # in the whole text
                middle = (overlap_start + overlap_end) // 2
                tokens = np.concatenate([before[:, :middle], tokens[:, middle - start :]], 1)
            merged.append((tokens, prompt, offsets, text))
        return merged

    def best_span(self, odds, offsets, text, threshold):
        """Return the best span of a text, "" for no answer, and its score. odds: (n,), of the tokens at the offsets."""
        if not len(odds):  # a blank context has no tokens
            return "", 0.0
        total = np.append(0, np.cumsum(odds - threshold))
        gain = total[1:] - np.minimum.accumulate(total[:-1])  # of the best span that ends at each token
        last = gain.argmax()
        if gain[last] <= 0 and self.may_be_none:
            return "", gain[last]
        first = total[: last + 1].argmin()
        return text[offsets[first, 0] : offsets[last, 1]].strip(), gain[last]


class InformationRetrieval(Family):
    """Embed queries and documents and compare them by cosine.

    In training, the other documents of a batch are each query's negatives, and cosines are divided by `temperature`.
    The field's metrics search the whole corpus. The paper's ranks only the documents that validation or test judge;
    without `full_corpus` it is the only one.
    """

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        self.embedded = {}  # {name of the set: (corpus, its vectors)}: validation and test mostly share a corpus
        self.judged = dataset.judged()

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
        query, document = F.normalize(output, dim=-1).view(-1, 2, output.shape[-1]).unbind(1)  # (n, d) each
        scores = query @ document.T / self.temperature  # (n, n)
        texts = np.array([item.target for item in items[1::2]], dtype=object)
        copy = to_device(torch.from_numpy(texts[:, None] == texts).fill_diagonal_(False), scores.device)
        return F.cross_entropy(scores.masked_fill(copy, -torch.inf), torch.arange(len(texts), device=scores.device))

    def embed(self, forward, corpus, chunk=2**15):
        """Embed a corpus {id: text}: fp32 (documents, d_model). At most `chunk` texts are in memory as tokens."""
        texts, vectors = [*corpus.values()], None
        for begin in range(0, len(texts), chunk):
            part = forward([self.document(text) for text in texts[begin : begin + chunk]])
            if vectors is None:
                vectors = np.empty((len(texts), len(part[0])), np.float32)
            vectors[begin : begin + chunk] = part
        return vectors

    def predict(self, forward, sets, split):
        """Rank documents for {name: Retrieval}. Returns {name: {"judged", "corpus": see `nearest_documents`}}."""
        found = {}
        for name, (queries, corpus, qrels) in sets.items():
            before, vectors = self.embedded.get(name, (None, None))
            if before is not corpus:
                vectors = self.embed(forward, corpus)
            if split:  # else the model is still changing
                self.embedded[name] = corpus, vectors
            query_ids, document_ids = metrics.answerable(qrels), list(corpus)
            query_vectors = np.stack(forward([self.query(queries[q]) for q in query_ids]))
            known = self.judged.get(id(corpus), corpus)  # a subsample has judged documents only
            judged = [i for i, d in enumerate(document_ids) if d in known]
            judged_ids = [document_ids[i] for i in judged]
            found[name] = {"judged": nearest_documents(query_vectors, vectors[judged], query_ids, judged_ids)}
            if self.full_corpus:
                found[name]["corpus"] = nearest_documents(query_vectors, vectors, query_ids, document_ids)
        return found

    def metrics(self, answers, sets):
        return metrics.retrieval_scores(answers, sets)

    def lines(self, answers, sets):
        """Yield a line for each query, with the ten best documents, and the judged ones with their grades as gold."""
        for name, runs in answers.items():
            for query, documents in runs.get("corpus", runs["judged"]).items():
                best = sorted(documents.items(), key=lambda item: item[::-1], reverse=True)[:10]  # as `metrics.gains`
                answer = Answer([document for document, _ in best], [score for _, score in best])
                yield answer.line(metrics.in_set(name, query), gold=sets[name].qrels[query])


def softmax(logits):
    """Return the probabilities of logits (n, classes)."""
    return torch.from_numpy(logits).softmax(-1).numpy()


def nearest_documents(queries, documents, query_ids, document_ids, k=100, chunk=2**16):
    """Find the k documents with the largest cosine for each query. Returns {query id: {document id: cosine}}.

    queries: (n, d). documents: (m, d), of which `chunk` are compared at a time.
    """
    queries = F.normalize(torch.from_numpy(queries), dim=-1)
    best, index = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for begin in range(0, len(documents), chunk):
        scores = queries @ F.normalize(torch.from_numpy(documents[begin : begin + chunk]), dim=-1).T  # (n, chunk)
        here = torch.arange(begin, begin + scores.shape[1]).expand_as(scores)
        best, index = torch.cat((best, scores), 1), torch.cat((index, here), 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        index = index.gather(1, order)
    names = [[document_ids[j] for j in row] for row in index.tolist()]
    return {query: dict(zip(row, scores)) for query, row, scores in zip(query_ids, names, best.tolist())}


def subsample(examples, n, judged_only=False):
    """Return n of the examples, spread evenly over them, or all if there are no more.

    examples: a list; or {name: Retrieval}, of which n queries each are kept. judged_only: also keep only the
    documents that are judged for those queries.
    """
    if isinstance(examples, list):
        return [examples[i * len(examples) // n] for i in range(n)] if n < len(examples) else examples
    small = {}
    for name, part in examples.items():
        qrels = {query: part.qrels[query] for query in subsample([*part.qrels], n)}
        judged = [document for grades in qrels.values() for document in grades]
        corpus = {document: part.corpus[document] for document in judged} if judged_only else part.corpus
        small[name] = part._replace(corpus=corpus, qrels=qrels)
    return small


FAMILIES = dict(sc=SequenceClassification, tc=TokenClassification, qa=QuestionAnswering, ir=InformationRetrieval)
