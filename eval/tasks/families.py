"""The four task families: an example as texts for the encoder, the loss of a batch, the metrics of a split.

Text forms, heads and both columns of metrics follow the protocol of arXiv 2507.00994; where that paper's metric is
not the field's, both are computed (eval/metrics.py).
"""

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from eval.tasks import metrics


class Item(NamedTuple):
    """One text for the encoder."""

    ids: list  # its tokens, eos last
    target: object  # sc: the label's index; tc, qa: a class for each token, -1 = none; ir: the document's text
    about: tuple = ()  # what scoring must know


class Family:
    """What the four have in common.

    dataset: eval.tasks.Dataset. max_len: tokens of a text, at most. counts: {rule: how often}, filled as texts are
    encoded. Each family has `n_outputs`, the width of its head; `items(example, split)`, its texts; `loss(output,
    items)`, the mean of a batch; and `score(predict, examples, split)`.
    """

    def __init__(self, dataset, tokenizer, max_len, temperature=0.05, full_corpus=True):
        self.labels, self.n_outputs = dataset.labels, 2 if dataset.family == "qa" else len(dataset.labels)
        self.index = {label: i for i, label in enumerate(dataset.labels)}
        self.tokenizer, self.max_len, self.counts = tokenizer, max_len, Counter()
        self.temperature, self.full_corpus = temperature, full_corpus
        self.may_be_none = dataset.family == "qa" and any(not question.answers for question in dataset.train)

    def count(self, split, rule):
        if split:  # None in the validations during training, which see a text many times
            self.counts[f"{split}: {rule}"] += 1

    def cut(self, ids, split, what="texts"):
        """ids with eos behind, at most max_len in all."""
        if len(ids) >= self.max_len:
            self.count(split, f"{what} cut at {self.max_len} tokens")
        return ids[: self.max_len - 1] + [self.tokenizer.eos_id]

    def score(self, predict, examples, split):
        """{metric: instances} of the examples; predict: items -> the model's outputs."""
        items = [item for example in examples for item in self.items(example, split)]
        return self.metrics(predict(items), items, examples)


class SequenceClassification(Family):
    def items(self, example, split):
        ids = self.cut(self.tokenizer.encode(example.text), split)
        return [Item(ids, self.index.get(example.label, -1))]

    def loss(self, output, items):
        return F.cross_entropy(output, torch.tensor([item.target for item in items], device=output.device))

    def metrics(self, made, items, examples):
        predicted = [self.labels[logits.argmax()] for logits in made]
        gold = [example.label for example in examples]
        return {"accuracy": metrics.accuracy(predicted, gold), "f1": metrics.f1(predicted, gold, self.labels)}


class TokenClassification(Family):
    def items(self, example, split):
        """Words joined by spaces; each token carries its word's label."""
        words = [self.tokenizer.encode(" " * (i > 0) + word) for i, word in enumerate(example.words)]
        ids = self.cut([token for word in words for token in word], split, "sentences")
        word_of = np.repeat(np.arange(len(words)), [len(word) for word in words])[: len(ids) - 1]
        label = np.array([self.index.get(tag, -1) for tag in example.tags] + [-1])
        return [Item(ids, label[np.append(word_of, -1)], word_of)]

    def loss(self, output, items):
        target = torch.from_numpy(np.concatenate([item.target for item in items])).to(output.device)
        return F.cross_entropy(output, target, ignore_index=-1)

    def metrics(self, made, items, examples):
        """A word's tag is the majority of its tokens', the first of those that tie; that of a word cut off is O."""
        predicted = []
        for logits, item, example in zip(made, items, examples):
            votes = [Counter() for _ in example.words]
            for word, label in zip(item.about, logits.argmax(-1)):
                votes[word][label] += 1
            predicted.append([self.labels[vote.most_common(1)[0][0]] if vote else "O" for vote in votes])
        gold = [example.tags for example in examples]
        return {"entity_f1": metrics.entity_f1(predicted, gold),
                "sentence_macro_f1": metrics.sentence_macro_f1(predicted, gold)}  # fmt: skip


class QuestionAnswering(Family):
    """Each token of the context is in the answer or not.

    The answer is the run of tokens with the largest sum of log-odds - offset; where the data have questions without an
    answer, none if that sum is negative. Answers are rare among tokens, so a model that is not sure of any gives them
    all low odds; offset, the odds above which a token counts for the answer, is chosen on the validation set.
    """

    offset, offsets = 0.0, [x / 2 for x in range(4, -17, -1)]

    def items(self, example, split):
        """Windows over the context that overlap by half; in training the first that holds the answer."""
        prefix = self.tokenizer.encode(f"Question: {example.question}\nContext:")
        if len(prefix) > self.max_len // 2:
            self.count(split, f"questions cut at {self.max_len // 2} tokens")
            prefix = prefix[: self.max_len // 2]
        context = self.tokenizer.encode(" " + example.context)
        ends = np.cumsum([len(self.tokenizer.token_bytes[i]) for i in context])  # in bytes, the space before included
        room = self.max_len - len(prefix) - 1
        inside = np.zeros(len(context), np.int64)
        text, start = example.answers[0] if example.answers else ("", -1)
        if start >= 0:  # -1: its text is not in the context
            first, last = (len(self.tokenizer.normalize(" " + example.context[:i]).encode())
                           for i in (start, start + len(text)))  # fmt: skip
            inside[(ends > first) & (np.append(0, ends[:-1]) < last)] = 1
        half = max(1, room // 2)
        starts = range(0, max(1, len(context) - room + half), half)
        if len(starts) > 1:
            self.count(split, "contexts longer than a window")
        if split == "train":
            starts = [next((s for s in starts if inside[s : s + room].sum() == inside.sum()), 0)]
            if inside[starts[0] : starts[0] + room].sum() < inside.sum():
                self.count(split, "answers longer than half a window, not whole in any")
        nothing = np.full(len(prefix), -1)
        return [Item(prefix + context[s : s + room] + [self.tokenizer.eos_id],
                     np.concatenate([nothing, inside[s : s + room], [-1]]), (len(prefix), s)) for s in starts]  # fmt: skip

    loss = TokenClassification.loss

    def score(self, predict, examples, split):
        items = [item for example in examples for item in self.items(example, split)]
        contexts = self.contexts(predict(items), items)
        if split != "test":
            self.offset = max(self.offsets, key=lambda x: metrics.score(self.field(contexts, examples, x)["f1"]))
        runs = [{i for i, odds in enumerate(odds, 1) if odds > 0} for _, odds, _ in contexts]
        gold = [{i for i, inside in enumerate(inside, 1) if inside} for _, _, inside in contexts]
        return self.field(contexts, examples, self.offset) | {"token_set_f1": metrics.token_set_f1(runs, gold)}

    def contexts(self, made, items):
        """[(tokens, log-odds, whether in the first gold answer)] of each question's context, put together from its
        windows: a token in several counts where it is farthest from an edge."""
        found = []
        for logits, item in zip(made, items):
            prefix, begin = item.about
            odds = logits[prefix:-1, 1] - logits[prefix:-1, 0]
            if begin == 0:  # the next question
                found.append((item.ids[prefix:-1], odds, item.target[prefix:-1]))
                continue
            tokens, before, inside = found[-1]
            middle = (begin + len(tokens)) // 2  # of the overlap: up to it the window before
            found[-1] = (tokens[:begin] + item.ids[prefix:-1],
                         np.concatenate([before[:middle], odds[middle - begin :]]),
                         np.concatenate([inside[:begin], item.target[prefix:-1]]))  # fmt: skip
        return found

    def field(self, contexts, examples, offset):
        """Exact match and F1 of the best runs."""
        predicted = {}
        for (tokens, odds, _), example in zip(contexts, examples):
            total = np.append(0, np.cumsum(odds - offset))
            gain = total[1:] - np.minimum.accumulate(total[:-1])  # of the best run that ends at each token
            end = gain.argmax()
            run = tokens[total[: end + 1].argmin() : end + 1]
            text = b"".join(self.tokenizer.token_bytes[i] for i in run).decode("utf-8", "ignore").strip()
            predicted[example.id] = "" if self.may_be_none and gain[end] <= 0 else text
        return metrics.squad(predicted, examples)


class InformationRetrieval(Family):
    """Queries and documents as unit vectors; a batch's other documents are each query's negatives."""

    def __init__(self, dataset, *options):
        super().__init__(dataset, *options)
        both = ((name, part) for sets in (dataset.validation, dataset.test) for name, part in sets.items())
        self.embedded = {}  # {name of the set: (corpus, its vectors)}: validation and test mostly share theirs
        self.judged = {name: set() for name in dataset.test}
        for name, part in both:
            self.judged[name].update(d for grades in part.qrels.values() for d in grades)

    def query(self, text, split):
        return Item(self.cut(self.tokenizer.encode(f"Query: {text}"), split, "queries"), None)

    def document(self, text, split):
        return Item(self.cut(self.tokenizer.encode(f"Document: {text}"), split, "documents"), text)

    def items(self, pair, split):
        return [self.query(pair.query, split), self.document(pair.document, split)]

    def loss(self, output, items):
        """InfoNCE (van den Oord et al., 2018) over the batch; a second copy of a query's document is no negative."""
        query, document = F.normalize(output, dim=-1).view(-1, 2, output.shape[-1]).unbind(1)  # (n, d) each
        scores = query @ document.T / self.temperature
        kinds = {text: i for i, text in enumerate(item.target for item in items[1::2])}
        kind = torch.tensor([kinds[item.target] for item in items[1::2]], device=scores.device)
        copy = (kind[:, None] == kind) & ~torch.eye(len(kind), dtype=torch.bool, device=scores.device)
        return F.cross_entropy(scores.masked_fill(copy, -torch.inf), torch.arange(len(kind), device=scores.device))

    def vectors(self, predict, corpus, split, chunk=2**15):
        """(documents, d) fp32, in the order of the corpus; what lies between is made a chunk at a time."""
        texts, vectors = [*corpus.values()], None
        for begin in range(0, len(texts), chunk):
            made = np.stack(predict([self.document(text, split) for text in texts[begin : begin + chunk]]))
            if vectors is None:
                vectors = np.empty((len(texts), made.shape[1]), np.float32)
            vectors[begin : begin + chunk] = made
        return vectors

    def score(self, predict, sets, split):
        """{metric: instances}: the field's over the whole corpus, the paper's over what validation and test judge."""
        found = {}
        for name, (queries, corpus, qrels) in sets.items():
            asked = metrics.answerable(qrels)
            names = list(corpus)
            known, vectors = self.embedded.get(name, (None, None))
            if known is not corpus:
                vectors = self.vectors(predict, corpus, split)
            if split:  # else the model is still changing
                self.embedded[name] = corpus, vectors
            asked_vectors = np.stack(predict([self.query(queries[q], split) for q in asked]))
            part = [i for i, d in enumerate(names) if d in self.judged[name]]
            paper = top(asked_vectors, vectors[part], asked, [names[i] for i in part])
            scores = {"ndcg@10_judged": metrics.ndcg_retrieved(paper, qrels)}
            if self.full_corpus:
                scores |= metrics.retrieval(top(asked_vectors, vectors, asked, names), qrels)
            found |= {f"{name}/{metric}" if name else metric: value for metric, value in scores.items()}
        return found


def top(queries, documents, query_names, document_names, k=100, chunk=2**16):
    """The k nearest documents of each query by cosine: {query: {document: score}}. queries (n, d), documents (m, d)."""
    queries = F.normalize(torch.from_numpy(queries), dim=-1)
    best, where = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for begin in range(0, len(documents), chunk):
        scores = queries @ F.normalize(torch.from_numpy(documents[begin : begin + chunk]), dim=-1).T  # (n, chunk)
        at = torch.arange(begin, begin + scores.shape[1]).expand_as(scores)
        best, where = torch.cat((best, scores), 1), torch.cat((where, at), 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        where = where.gather(1, order)
    return {query: {document_names[j]: s for j, s in zip(row, scores)}
            for query, row, scores in zip(query_names, where.tolist(), best.tolist())}  # fmt: skip


def at_most(examples, n, judged_only=False):
    """n of the examples, spread evenly over them; all where there are no more. Of retrieval sets, so many queries;
    judged_only: and of the corpus only the documents that are judged for them."""

    def spread(values):
        return [values[i * len(values) // n] for i in range(n)] if n < len(values) else values

    if isinstance(examples, list):
        return spread(examples)
    small = {}
    for name, part in examples.items():
        qrels = {query: part.qrels[query] for query in spread([*part.qrels])}
        judged = (d for grades in qrels.values() for d in grades)
        corpus = {d: part.corpus[d] for d in judged} if judged_only else part.corpus
        small[name] = part._replace(corpus=corpus, qrels=qrels)
    return small


FAMILIES = {"sc": SequenceClassification, "tc": TokenClassification, "qa": QuestionAnswering, "ir": InformationRetrieval}
