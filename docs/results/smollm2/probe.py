"""A linear probe on CoNLL-2003: tag words by one linear layer on the hidden states of a frozen model.

    PYTHONPATH=. python docs/results/smollm2/probe.py CHECKPOINT [--causal=True]

The hidden states of each sentence are computed once. The layer is trained at several rates, the validation sentences
choose one, and the entity F1 of the test sentences is printed for it. A hidden state is standardized first, by the mean
and the standard deviation of the training tokens.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F

import configurator
from eval.tasks import hub_encoder, metrics
from eval.tasks.families import subsample
from eval.tasks.model import predict
from eval.tasks.registry import find_task
from eval.tasks.result import build
from eval.tasks.splits import read
from runtime import resolve_auto

SENTENCES = dict(train=3000, validation=800, test=1000)  # evenly spread over those of the data set
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
STEPS, BATCH = 1000, 1024  # a batch is 1,024 tokens

path, *options = sys.argv[1:]
arguments = [f"--init_from={path}", "--task=conll2003", "--out_dir=out/probe", *options]
cfg = resolve_auto(configurator.load("finetune.py", arguments))
_, state = hub_encoder.open_newest(cfg.init_from)
dataset = read(find_task(cfg.task, cfg.tasks_dir))
task, model = build(cfg, dataset, state)
model.head = torch.nn.Identity()

examples = {split: subsample(getattr(dataset, split), n) for split, n in SENTENCES.items()}
items = {split: [item for example in examples[split] for item in task.items(example, split)] for split in examples}
hidden = {split: predict(model, items[split]) for split in items}  # (tokens, d) of each sentence

x = torch.from_numpy(np.concatenate(hidden["train"]))
y = torch.from_numpy(np.concatenate([item.target for item in items["train"]]))
x, y = x[y >= 0], y[y >= 0]  # eos has no tag
mean, std = x.mean(0), x.std(0)
x = (x - mean) / std


def train(lr):
    torch.manual_seed(1)
    layer = torch.nn.Linear(x.shape[1], task.n_outputs)
    optimizer = torch.optim.AdamW(layer.parameters(), lr, weight_decay=0.01)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = lr * (1 - step / STEPS)
        batch = torch.randint(len(x), (BATCH,))
        loss = F.cross_entropy(layer(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return layer


@torch.no_grad()
def entity_f1(layer, split):
    outputs = [layer((torch.from_numpy(h) - mean) / std).numpy() for h in hidden[split]]
    answers = task.answers(outputs, items[split], examples[split], split)
    return metrics.score(task.metrics(answers, examples[split])["entity_f1"])


found = []
for lr in RATES:
    layer = train(lr)
    found.append((entity_f1(layer, "validation"), lr, layer))
    print(f"rate {lr:g}: validation {found[-1][0]:.1f}", flush=True)
_, lr, layer = max(found, key=lambda row: row[0])
print(f"{path} {' '.join(options)}: rate {lr:g}, test entity F1 {entity_f1(layer, 'test'):.1f}")
