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
from data.objective import CLM, Objective, phases_of, predicts_from
from data.shards import load_data
from errors import DataError, progress
from eval.lesson.explain import hidden_states, print_table
from eval.plot import new_figure, save_figure
from model import PretrainingLoss

run = "out/lesson"  # the folder of a run with at least two checkpoints
out = "out/switch.png"  # the figure

WINDOWS = 64  # validation windows, at most
MIDDLE = 8  # masked tokens nearest the middle of each window


@torch.no_grad()
def context_losses(model, batch, middle=MIDDLE):
    """Return the mean loss of masked tokens that see both sides, the left context only, and the right context only.

    batch: an MLM batch of `Batches`. middle: how many masked tokens of each window count, the nearest to its middle.
    """
    tokens, (B, T) = batch["tokens"], batch["tokens"].shape
    position, target = batch["positions"].view(B, -1) % T, batch["targets"].view(B, -1)  # (B, n_masked)
    nearest = (position - T // 2).abs().argsort(dim=1, stable=True)[:, :middle]
    position, target = position.gather(1, nearest), target.gather(1, nearest)
    row, column = (target >= 0).nonzero(as_tuple=True)
    position, target = position[row, column], target[row, column]  # (n,)
    both = model(tokens, causal=False)[row, position]  # (n, d_model)
    left = split_states(model, tokens[row], position, position + 1)
    right = split_states(model, tokens[row], position, position)
    return [F.cross_entropy(model.logits(hidden), target).item() for hidden in (both, left, right)]


def split_states(model, tokens, position, split):
    """Return the hidden state at one position of each window, which is split in two as `window_split` does: (n, d_model).

    tokens (n, T); position (n,); split (n,): tokens before this one and tokens from it on do not see each other.
    """
    t, T, cut = torch.arange(tokens.shape[1]), tokens.shape[1], split[:, None]
    doc_start, doc_end = torch.where(t < cut, 0, cut), torch.where(t < cut, cut, T)  # (n, T)
    return model(tokens, False, doc_start.int(), doc_end.int())[torch.arange(len(tokens)), position]


def cka(x, y):
    """Return the linear CKA of x and y (..., d): with N rows, columns centered, ||yᵀx||² / (||xᵀx|| ||yᵀy||)."""
    x, y = (z - z.mean(0) for z in (x.double().flatten(0, -2), y.double().flatten(0, -2)))
    return ((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


def measure(run):
    """Return a run's n checkpoints' steps, its switch, their losses (n, 5) and their layers' similarity (n, n_layer + 1).

    The switch is the last checkpoint in the first phase. The losses are those of CLM, MLM, and `context_losses`.
    """
    if len(steps := checkpoint.steps(run)) < 2:
        raise DataError(f"run={run}: has fewer than two checkpoints; train.py keeps those that --keep_steps names")
    state = checkpoint.load(checkpoint.path_of(run, steps[-1]))
    if predicts_from(state) == "before":
        why = "it predicts a hidden token from the position before it, which the right context does not have"
        raise DataError(f"run={run}: {why}; give a run with predict_from=mask")
    settings, T, phases = state["settings"], state["config"]["seq_len"], phases_of(state)
    first_phase = phases[0]["steps"] if len(phases) > 1 else 0
    switch = max([step for step in steps if step <= first_phase], default=steps[0])
    stream = streams_of(load_data(settings["data"]), "val")[0]  # of a mixture: the first source
    n_windows, tokenizer = min(WINDOWS, len(stream) // T), checkpoint.tokenizer_of(state)
    ratio = settings["mask_ratio"][0]
    batches = Batches([stream], tokenizer, 0, T, n_windows, mask_ratio=ratio)
    clm, mlm = batches.batch(0, CLM), batches.batch(0, Objective(mask_ratio=ratio))
    reference = hidden_states(checkpoint.load_model(checkpoint.path_of(run, switch)), clm["tokens"], causal=False)
    losses, similarity = [], []
    for step in progress(steps, "checkpoints", leave=False):
        model = checkpoint.load_model(checkpoint.path_of(run, step))
        with torch.no_grad():
            sums = [PretrainingLoss(model)(batch, causal) for batch, causal in ((clm, True), (mlm, False))]
        losses.append([total / count for total, count in sums] + context_losses(model, mlm))
        similarity.append([cka(x, y) for x, y in zip(reference, hidden_states(model, clm["tokens"], causal=False))])
    return steps, switch, losses, similarity


def print_numbers(names, steps, rows):
    """Print a table of numbers with a line for each step."""
    lines = [(str(step), *(f"{value:.2f}" for value in row)) for step, row in zip(steps, rows)]
    print_table([("  step", *names), *lines], str.rjust)


def draw(figure, steps, switch, losses, similarity):
    """Draw the losses with one context and the other, and the similarity. Arguments: see `measure`."""
    left, right = figure.subplots(1, 2)
    x, (_, _, both, left_only, right_only) = range(len(steps)), zip(*losses)
    left.plot(x, left_only, "o--", color="0.35", ms=4, label="left only")
    left.plot(x, right_only, "^:", color="0.6", ms=4, label="right only")
    left.plot(x, both, "s-", color="0", ms=4, label="both sides")
    left.set_ylabel("loss of masked tokens (nats)")
    left.legend(title="context that the model sees", fontsize=8, title_fontsize=8)
    for layer, values in enumerate(zip(*similarity)):
        name = f"after layer {layer}" if layer else "embedding"
        gray = str(0.75 - 0.75 * layer / (len(similarity[0]) - 1))
        right.plot(x, values, "osD^vPX*"[layer % 8] + "-", color=gray, ms=4, label=name)
    right.set_ylabel(f"similarity to step {switch} (linear CKA)")
    right.set_ylim(0, 1.05)
    right.legend(fontsize=8)
    for axes in (left, right):
        axes.set_xticks(x, steps)
        axes.set_xlabel("step of the checkpoint (not to scale)")


def main(cfg):
    steps, switch, losses, similarity = measured = measure(cfg.run)
    names = ["CLM loss", "MLM loss", "both sides", "left only", "right only", "gain from right"]
    print_numbers(names, steps, [[*row, row[3] - row[2]] for row in losses])
    print(f"\nlinear CKA between the output of a layer and its output at step {switch}")
    names = ["embedding", *(f"layer {layer}" for layer in range(1, len(similarity[0])))]
    print_numbers(names, steps, similarity)
    if figure := new_figure(9, 3.6):
        draw(figure, *measured)
        save_figure(figure, cfg.out)
        print(f"drawn in {cfg.out}")
