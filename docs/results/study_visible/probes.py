"""Linear probes: what the outputs at visible tokens keep.

    PYTHONPATH=. python docs/results/study_visible/probes.py MODEL MODEL?random=0 ...

A probe is a linear discriminant analysis of the outputs at the tokens of CoNLL-2003. It is fitted on 63,000 tokens of
the training set and tested on 18,900 tokens of the validation set. It reads the token itself, the ones before and after
it, and the part of speech of its word (the second column). The effective dimension is (Σλ)² / Σλ², where λ are the
variances of the outputs along their principal axes. A model with `?random=0` behind it has random weights of that seed.
"""

import sys
from pathlib import Path

import torch

from checkpoint import load, model_from, tokenizer_of
from model import ModelConfig, Transformer

MEASURES = ["own token", "previous token", "next token", "part of speech", "effective dimension"]


def windows(path, tokenizer, n, T=128):
    """Return the first n windows of a CoNLL file: tokens [n, T], and the part of speech of each token's word."""
    tokens, tags = [], []
    for sentence in Path(path).read_text(encoding="latin-1").split("\n\n"):
        lines = [line.split() for line in sentence.splitlines() if line and "-DOCSTART-" not in line]
        for i, (word, tag, *_) in enumerate(lines):
            pieces = tokenizer.encode(" " * (i > 0) + word)
            tokens, tags = tokens + pieces, tags + [tag] * len(pieces)
        tokens, tags = tokens + [tokenizer.eos_id], tags + ["-"]
        if len(tokens) >= n * T:
            return torch.tensor(tokens[: n * T]).view(n, T), tags[: n * T]


@torch.no_grad()
def examples(model, tokenizer, path, n, names):
    """Return the outputs [N, d_model] at all tokens but the first and last of each window, and what to read there."""
    tokens, tags = windows(path, tokenizer, n)
    names += [tag for tag in sorted({*tags}) if tag not in names]
    tags = torch.tensor([names.index(tag) for tag in tags]).view_as(tokens)
    outputs = torch.cat([model(part, causal=False)[:, 1:-1] for part in tokens.split(50)])
    targets = tokens[:, 1:-1], tokens[:, :-2], tokens[:, 2:], tags[:, 1:-1]
    return outputs.flatten(0, 1).double(), [target.flatten() for target in targets]


def accuracy(x, y, x_test, y_test):
    """Return the accuracy in percent of linear discriminant analysis: a mean for each class, a covariance for all."""
    classes, y = y.unique(return_inverse=True)
    counts = torch.bincount(y)
    means = torch.zeros(len(classes), x.shape[1], dtype=x.dtype).index_add_(0, y, x) / counts[:, None]
    covariance = (x - means[y]).T @ (x - means[y]) / len(x)
    covariance += 1e-6 * covariance.trace() / len(covariance) * torch.eye(len(covariance))
    weight = torch.linalg.solve(covariance, means.T)
    bias = (counts / len(x)).log() - (means.T * weight).sum(0) / 2
    guesses = torch.cat([(part @ weight + bias).argmax(1) for part in x_test.split(2000)])
    return (classes[guesses] == y_test).double().mean().item() * 100


def measure(path, seed):
    """Return the accuracies and the effective dimension. With a seed: of random weights instead of the checkpoint's."""
    state, names = load(path), []
    model, tokenizer = model_from(state), tokenizer_of(state)
    if seed:
        torch.manual_seed(int(seed))
        model = Transformer(ModelConfig(**state["config"]))
    x, train = examples(model.eval(), tokenizer, "data/tasks/conll2003/eng.train", 500, names)
    x_test, test = examples(model, tokenizer, "data/tasks/conll2003/eng.testa", 150, names)
    variances = torch.linalg.eigvalsh(torch.cov(x_test.T))
    dimension = variances.sum() ** 2 / (variances**2).sum()
    return [accuracy(x, y, x_test, y_test) for y, y_test in zip(train, test)] + [dimension.item()]


print("model", *MEASURES, sep=",")
for argument in sys.argv[1:]:
    path, _, seed = argument.partition("?random=")
    print(argument, *(round(value, 1) for value in measure(path, seed)), sep=",", flush=True)
