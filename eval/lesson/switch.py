"""Measure what changes at a run's switch from CLM to MLM, on the checkpoints that the run kept.

    python train.py --keep_steps=200,205,210,220,240,280,350,450 --out_dir=out/lesson
    python -m eval.lesson switch --run=out/lesson

For each checkpoint, on the validation windows and masks of the run's own evaluation (the windows are not split):

1. Both validation losses, as train.py computes them.
2. The loss of masked tokens when the model sees the whole window, only the left context, or only the right context.
   Only the masked tokens nearest the middle of each window count, because they have as much text on either side.
   The loss with the left context only minus the loss with both sides is the gain from the right context.
"""

import torch
import torch.nn.functional as F

import checkpoint
from data import validation
from data.loader import Batches, streams_of
from data.shards import load_data
from errors import DataError, progress
from eval.lesson.explain import aligned, read
from eval.plot import new_figure, save_figure
from model import PretrainingLoss

run = "out/lesson"  # the folder of a run with checkpoints
out = "out/switch.png"  # the figure

WINDOWS = 64  # validation windows, at most
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
    losses = []
    for split in (torch.full_like(position, T), position + 1, position):  # after the window, after and before the token
        split = split[:, None]
        is_left = torch.arange(T) < split  # (n, T): the tokens of one side do not see those of the other
        doc_start = torch.where(is_left, 0, split).int()
        doc_end = torch.where(is_left, split, T).int()
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
        T = model.config.seq_len
        stream = streams_of(load_data(state["settings"]["data"]), "val")[0]  # of a mixture: the first source
        batches = Batches([stream], tokenizer, 0, T, min(WINDOWS, len(stream) // T))
        clm, mlm = (batches.batch(0, what) for what in validation.objectives("mask"))
        loss = PretrainingLoss(model)
        clm_sum, clm_count = loss(clm, causal=True)
        mlm_sum, mlm_count = loss(mlm, causal=False)
        both, left, right = context_losses(model, mlm)
        yield step, clm_sum / clm_count, mlm_sum / mlm_count, both, left, right, left - both


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
