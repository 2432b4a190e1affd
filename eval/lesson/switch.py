"""Measure what changes at a run's switch from CLM to MLM, on the checkpoints that the run kept.

    python train.py --keep_steps=200,205,210,220,240,280,350,450 --out_dir=out/lesson
    python -m eval.lesson switch --run=out/lesson

For each checkpoint, on the validation windows and masks of the run's own evaluation (the windows are not split):

1. Both validation losses, as train.py computes them.
2. The loss of masked tokens when the model sees the whole window, only the left context, or only the right context.
   Only the masked tokens nearest the middle of each window count, because they have as much text on either side.
   The loss with the left context only minus the loss with both sides is the gain from the right context.
3. How similar each layer's output is to its output at the switch: linear CKA (Kornblith et al., 2019; 1 = the same up
   to rotation and scale), on text without masks and with causal=False.
"""

import torch
import torch.nn.functional as F

import checkpoint
from data.loader import Batches, streams_of
from data.objective import CLM, MLM, phases_of, predicts_from
from data.shards import load_data
from errors import DataError, progress
from eval.lesson.explain import hidden_states, print_table
from eval.plot import new_figure, save_figure
from model import PretrainingLoss

run = "out/lesson"  # the folder of a run with at least two checkpoints
out = "out/switch.png"  # the figure

WINDOWS = 64  # validation windows, at most
MIDDLE = 8  # masked tokens nearest the middle of each window
LOSSES = ["CLM loss", "MLM loss", "both sides", "left only", "right only"]  # the columns of the first table


@torch.no_grad()
def context_losses(model, batch, middle=MIDDLE):
    """Return the mean loss of masked tokens that see both sides, the left context only, and the right context only.

    batch: an MLM batch of `Batches`. middle: how many masked tokens of each window count, the nearest to its middle.
    """
    tokens = batch["tokens"]
    B, T = tokens.shape
    position = batch["positions"].view(B, -1) % T  # (B, n_masked)
    target = batch["targets"].view(B, -1)
    distance = (position - T // 2).abs()
    nearest = distance.argsort(dim=1, stable=True)[:, :middle]
    position = position.gather(1, nearest)
    target = target.gather(1, nearest)

    row, column = (target >= 0).nonzero(as_tuple=True)  # (n,): where there is a target
    position = position[row, column]
    target = target[row, column]
    both = model(tokens, causal=False)[row, position]  # (n, d_model)
    left = split_states(model, tokens[row], position, position + 1)
    right = split_states(model, tokens[row], position, position)
    return [F.cross_entropy(model.logits(hidden), target).item() for hidden in (both, left, right)]


def split_states(model, tokens, position, split):
    """Return the hidden state at one position of each window, which is split in two as `window_split` does: (n, d_model).

    tokens (n, T); position (n,); split (n,): tokens before this one and tokens from it on do not see each other.
    """
    n, T = tokens.shape
    split = split[:, None]
    is_left = torch.arange(T) < split  # (n, T)
    doc_start = torch.where(is_left, 0, split)
    doc_end = torch.where(is_left, split, T)
    hidden = model(tokens, False, doc_start.int(), doc_end.int())
    return hidden[torch.arange(n), position]


def cka(x, y):
    """Return the linear CKA of x and y (..., d): with N rows, columns centered, ||yᵀx||² / (||xᵀx|| ||yᵀy||)."""
    x = x.double().flatten(0, -2)
    y = y.double().flatten(0, -2)
    x = x - x.mean(0)
    y = y - y.mean(0)
    similarity = (y.T @ x).norm() ** 2
    return (similarity / ((x.T @ x).norm() * (y.T @ y).norm())).item()


def steps_and_switch(run):
    """Return the steps of a run's checkpoints, and of those the switch: the last one in the first phase."""
    steps = checkpoint.steps(run)
    if len(steps) < 2:
        raise DataError(f"run={run}: has fewer than two checkpoints; train.py keeps those that --keep_steps names")
    state = checkpoint.load(checkpoint.path_of(run, steps[-1]))
    if predicts_from(phases_of(state)) == "before":
        why = "it predicts a hidden token from the position before it, which the right context does not have"
        raise DataError(f"run={run}: {why}; give a run with predict_from=mask")
    first_phase, *others = phases_of(state)
    switch = steps[0]
    for step in steps:
        if others and step <= first_phase["steps"]:
            switch = step
    return steps, switch


def validation_batches(state):
    """Return a batch of validation windows for CLM and one for MLM, with the masks of the run of this checkpoint."""
    settings = state["settings"]
    T = state["config"]["seq_len"]
    ratio = settings["mask_ratio"][0]
    stream = streams_of(load_data(settings["data"]), "val")[0]  # of a mixture: the first source
    n_windows = min(WINDOWS, len(stream) // T)
    batches = Batches([stream], checkpoint.tokenizer_of(state), 0, T, n_windows)
    return batches.batch(0, CLM()), batches.batch(0, MLM(ratio))


@torch.no_grad()
def measure(run):
    """Return a run's n checkpoints' steps, its switch, their losses (n, 5) and their layers' similarity (n, n_layer + 1).

    The losses are those of CLM, MLM, and `context_losses`.
    """
    steps, switch = steps_and_switch(run)
    path = checkpoint.path_of(run, switch)
    clm, mlm = validation_batches(checkpoint.load(path))
    reference = hidden_states(checkpoint.load_model(path), clm["tokens"], causal=False)
    losses = []
    similarity = []
    for step in progress(steps, "checkpoints", leave=False):
        model = checkpoint.load_model(checkpoint.path_of(run, step))
        loss = PretrainingLoss(model)
        clm_sum, clm_count = loss(clm, causal=True)
        mlm_sum, mlm_count = loss(mlm, causal=False)
        losses.append([clm_sum / clm_count, mlm_sum / mlm_count, *context_losses(model, mlm)])
        layers = hidden_states(model, clm["tokens"], causal=False)
        similarity.append([cka(x, y) for x, y in zip(reference, layers)])
    return steps, switch, losses, similarity


def print_numbers(names, steps, rows):
    """Print a table of numbers with a line for each step."""
    lines = [("  step", *names)]
    for step, row in zip(steps, rows):
        lines.append((str(step), *(f"{value:.2f}" for value in row)))
    print_table(lines, str.rjust)


def draw(figure, steps, switch, losses, similarity):
    """Draw the losses with one context and the other, and the similarity. Arguments: see `measure`."""
    left, right = figure.subplots(1, 2)
    x = range(len(steps))
    _, _, both, left_only, right_only = zip(*losses)
    left.plot(x, left_only, "o--", color="0.35", ms=4, label="left only")
    left.plot(x, right_only, "^:", color="0.6", ms=4, label="right only")
    left.plot(x, both, "s-", color="0", ms=4, label="both sides")
    left.set_ylabel("loss of masked tokens (nats)")
    left.legend(title="context that the model sees", fontsize=8, title_fontsize=8)

    layers = list(zip(*similarity))
    for layer, values in enumerate(layers):
        gray = 0.75 - 0.75 * layer / (len(layers) - 1)  # the last one is black
        marker = "osD^vPX*"[layer % 8]
        label = f"after layer {layer}" if layer else "embedding"
        right.plot(x, values, f"{marker}-", color=str(gray), ms=4, label=label)
    right.set_ylabel(f"similarity to step {switch} (linear CKA)")
    right.set_ylim(0, 1.05)
    right.legend(fontsize=8)

    for axes in (left, right):
        axes.set_xticks(x, steps)
        axes.set_xlabel("step of the checkpoint (not to scale)")


def main(cfg):
    steps, switch, losses, similarity = measure(cfg.run)
    rows = []
    for row in losses:
        _, _, both, left_only, _ = row
        rows.append([*row, left_only - both])
    print_numbers([*LOSSES, "gain from right"], steps, rows)

    print(f"\nlinear CKA between the output of a layer and its output at step {switch}")
    n_layer = len(similarity[0]) - 1
    print_numbers(["embedding", *(f"layer {layer}" for layer in range(1, n_layer + 1))], steps, similarity)
    figure = new_figure(9, 3.6)
    if figure:
        draw(figure, steps, switch, losses, similarity)
        save_figure(figure, cfg.out)
        print(f"drawn in {cfg.out}")
