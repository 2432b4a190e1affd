"""Measure what changes at a run's switch from CLM to MLM, on the checkpoints that the run kept.

    python train.py --keep_steps=200,205,210,220,240,280,350,450 --out_dir=out/lesson
    python -m eval.lesson switch --run=out/lesson

For each checkpoint, on the first 64 validation windows of the run's own evaluation (not split), with its masks:

1. Both validation losses, as train.py computes them on these windows.
2. The loss of masked tokens when the model sees the whole window, only the left context, or only the right context.
   Only the masked tokens nearest the middle of each window count, because they have as much text on either side.
   The loss with the left context only minus the loss with both sides is the gain from the right context.
"""

import torch
import torch.nn.functional as F

import checkpoint
from data import validation
from errors import DataError, progress
from eval.lesson.explain import aligned, batches_of, read
from eval.plot import new_figure, save_figure
from model import PretrainingLoss

run = "out/lesson"  # the folder of a run with checkpoints
out = "out/switch.png"  # the figure

WINDOWS = 64  # validation windows, at most: the tokens of each are computed up to 26 times
MIDDLE = 8  # masked tokens nearest the middle of each window
COLUMNS = ("step", "CLM loss", "MLM loss", "both sides", "left only", "right only", "gain from right")
STYLES = {"both sides": "ks-", "left only": "bo--", "right only": "y^:"}  # of the curves


@torch.no_grad()
def context_losses(model, batch, middle=MIDDLE):
    """Return the mean loss of masked tokens that see both sides, the left context only, and the right context only.

    batch: an MLM batch of `Batches`. middle: how many masked tokens of each window count, the nearest to its middle.
    """
    tokens = batch["tokens"]
    B, T = tokens.shape
    position = batch["positions"].view(B, -1) % T  # (B, n_masked)
    distance = (position - T // 2).abs()
    nearest = distance.argsort(dim=1, stable=True)[:, :middle]
    position = position.gather(1, nearest).flatten()  # (n,)
    target = batch["targets"].view(B, -1).gather(1, nearest).flatten()  # -1 where there is none
    tokens = tokens.repeat_interleave(nearest.shape[1], dim=0)  # (n, T)
    first, end = torch.zeros_like(position), torch.full_like(position, T)  # (n,) each
    losses = []
    # All tokens of a row have the same bounds, so that none brings in what the hidden side holds.
    for seen in (first, end), (first, position + 1), (position, end):  # both sides, left, right
        doc_start, doc_end = (x[:, None].expand_as(tokens).int() for x in seen)  # (n, T) each
        hidden = model(tokens, False, doc_start, doc_end)[torch.arange(len(tokens)), position]  # (n, d_model)
        losses.append(F.cross_entropy(model.logits(hidden), target, ignore_index=-1).item())
    return losses


@torch.no_grad()
def measure(run):
    """Yield the columns of each checkpoint of a run: its step, five losses and the gain from the right context."""
    steps = checkpoint.steps(run)
    if not steps:
        raise DataError(f"run={run}: has no checkpoint; train.py keeps those that --keep_steps names")
    for step in progress(steps, "checkpoints", leave=False):
        state, model, tokenizer = read(checkpoint.path_of(run, step))
        _, val = batches_of(state, tokenizer)
        _, batches = next(iter(val.values()))  # of a mixture: the first source
        losses = []
        for what in validation.objectives("mask"):  # CLM, then MLM
            batch = batches.batch(0, what, range(min(WINDOWS, batches.windows_per_step)))
            loss_sum, count = PretrainingLoss(model)(batch, what.causal)
            losses.append(loss_sum / count)
        both, left, right = context_losses(model, batch)
        yield step, *losses, both, left, right, left - both


def main(cfg):
    rows = list(measure(cfg.run))
    cells = [(str(step), *(f"{x:.2f}" for x in values)) for step, *values in rows]
    print(aligned([COLUMNS, *cells], str.rjust))

    columns = dict(zip(COLUMNS, zip(*rows)))
    figure = new_figure(6, 3.6)
    axes = figure.subplots()
    for name, style in STYLES.items():
        axes.plot(columns[name], style, ms=4, label=name)
    axes.set_xticks(range(len(rows)), columns["step"])
    axes.set(xlabel="step of the checkpoint (not to scale)", ylabel="loss of masked tokens (nats)")
    axes.legend(title="context that the model sees")
    save_figure(figure, cfg.out)
    print(f"drawn in {cfg.out}")
