"""What the kept checkpoints of a run say about its switch: the use of the right context, and what the layers become.

    python train.py --keep_steps=200,205,210,220,240,280,350,450
    python eval/switch.py --run=out/demo

Three questions to each checkpoint, on the validation windows and masks of the run's own evaluation, windows not cut:

1. Both losses, as the run itself computes them.
2. What a masked token costs when the model sees all of the window, only what is to its left, or only what is to its
   right. Asked of the masked tokens nearest the middle of each window, where there is as much on either side. The loss
   with the left alone minus that with both is what the tokens to the right are worth.
3. How similar the output of each layer is to that of the checkpoint at the switch: linear CKA (Kornblith et al., 2019;
   1 = the same up to rotation and scale), of text without masks read as an encoder reads it (causal=False).
"""

import sys
from pathlib import Path

import numpy as np
import torch

import checkpoint
import configurator
from data.loader import Batches, TokenStream
from data.shards import load_meta
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.lesson.explain import states
from model import PretrainingLoss, Transformer

run = "out/demo"  # the folder of a run, with at least two checkpoints
windows = 64  # validation windows
middle = 8  # masked tokens nearest the middle of each window
out = "out/switch.png"  # the figure


@torch.no_grad()
def sides(model, batch, middle):
    """The mean loss of masked tokens with all of the window in view, what is left of them, what is right: three floats.

    batch: of `Batches`, for MLM. To hide a side of token i, its row is cut there: it keeps tokens 0 .. i, or i .. T - 1.
    """
    B, T = batch["tokens"].shape
    at, targets = batch["positions"].view(B, -1) % T, batch["targets"].view(B, -1)  # (B, n_masked)
    column = (at - T // 2).abs().argsort(dim=1, stable=True)[:, :middle]
    row, column = torch.arange(B).repeat_interleave(column.shape[1]), column.flatten()
    row, column = (x[targets[row, column] >= 0] for x in (row, column))  # (n,): which masked tokens
    i, target = at[row, column], targets[row, column]

    def loss(hidden):
        return torch.nn.functional.cross_entropy(model.logits(hidden), target).item()

    def cut(start, end):  # of each of the n rows tokens start .. end - 1 are left; the rest is padding, or not even there
        first, hidden = int(start.min()), []
        t = torch.arange(first, int(end.max()))
        for part in torch.arange(len(row)).split(64):
            inside = (t >= start[part, None]) & (t < end[part, None])  # (64, T)
            bounds = [((bound[part, None] - first) * inside).int() for bound in (start, end)]
            states = model(batch["tokens"][row[part]][:, t], False, *bounds)
            hidden.append(states[torch.arange(len(part)), i[part] - first])
        return loss(torch.cat(hidden))

    both = loss(model(batch["tokens"], False)[row, i])
    return both, cut(torch.zeros_like(i), i + 1), cut(i, torch.full_like(i, T))


def cka(x, y):
    """Linear centred kernel alignment of two sets of states (N, d): ||yᵀx||² / (||xᵀx|| ||yᵀy||), columns centred."""
    x, y = x.double() - x.double().mean(0), y.double() - y.double().mean(0)
    return ((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm())).item()


@torch.no_grad()
def measure(model, clm, mlm, middle):
    """(CLM loss, MLM loss), (loss with both sides, left only, right only), [states of each layer (B * T, d)]."""
    losses = []
    for batch, causal in ((clm, True), (mlm, False)):
        total, count = PretrainingLoss(model)(batch, causal)
        losses.append((total / count).item())
    text = clm["tokens"][: max(1, 2**13 // clm["tokens"].shape[1])]  # 8,192 tokens are enough to compare layers
    return losses, sides(model, mlm, middle), [x.flatten(0, 1) for x in states(model, text, False)]


def draw(path, steps, switch, costs, similar):
    """Writes the figure; False without matplotlib. costs: (n, 3), as of `sides`; similar: (n, n_layer + 1)."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    x = np.arange(len(steps))
    for column, name, style, grey in ((1, "only what is to its left", "o--", "0.35"),
                                      (2, "only what is to its right", "^:", "0.6"), (0, "both", "s-", "0")):  # fmt: skip
        left.plot(x, costs[:, column], style, color=grey, ms=4, label=name)
    left.set_ylabel("loss of a masked token (nats)")
    left.legend(frameon=False, title="what the model sees", fontsize=8, title_fontsize=8)
    for layer in range(similar.shape[1]):
        name = f"after layer {layer}" if layer else "embedding"
        grey = str(0.75 * (1 - layer / (similar.shape[1] - 1)))
        right.plot(x, similar[:, layer], "osD^vPX*"[layer % 8] + "-", color=grey, ms=4, label=name)
    right.set_ylabel(f"similarity to step {switch} (linear CKA)")
    right.set_ylim(0, 1.05)
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.set_xticks(x, steps)
        axes.set_xlabel("step of the checkpoint (not to scale)")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def check(s):
    if len(checkpoint.steps(s["run"])) < 2:
        yield f"run={s['run']}: has fewer than two checkpoints; train.py keeps those that --keep_steps names"
    for name in ("windows", "middle"):
        if s[name] < 1:
            yield f"{name}={s[name]}: must be at least 1"
    if Path(s["out"]).suffix != ".png":
        yield f"out={s['out']}: must be the name of a .png file"


def main():
    globals().update(configurator.load(__file__, sys.argv[1:], check))
    try:
        measure_run()
    except (Damaged, DataError) as error:
        sys.exit(f"{error}")


def measure_run():
    steps = checkpoint.steps(run)
    state = checkpoint.load(checkpoint.path_of(run, steps[-1]))
    s, T = state["settings"], state["config"]["seq_len"]
    switch = max([step for step in steps if step <= s["switch_step"]] or steps[:1])
    meta, tokenizer = load_meta(s["data"]), Tokenizer.from_state(state["tokenizer"], state["tokenizer_ranks"])
    stream = TokenStream(s["data"], meta, "val")
    batches = Batches(stream, tokenizer, 0, T, min(windows, len(stream) // T), mask_ratio=s["mask_ratio"])
    clm, mlm = batches.batch(0, True), batches.batch(0, False)

    def of(step):
        return measure(Transformer.from_state(checkpoint.load(checkpoint.path_of(run, step))), clm, mlm, middle)

    reference = of(switch)[2]
    print(f"{'':>8}{'validation loss':>18}   {'of masked tokens, seeing':>28}{'worth of':>10}   "
          f"similarity to step {switch}, after layer")  # fmt: skip
    print(f"{'step':>8}{'CLM':>10}{'MLM':>8}   {'both':>10}{'left':>9}{'right':>9}{'the right':>10}   "
          + "".join(f"{layer:>6}" for layer in range(len(reference))) + "   (0 = the embedding)")  # fmt: skip
    costs, similar = [], []
    for step in steps:
        losses, (both, left, right), layers = of(step)
        costs.append((both, left, right))
        similar.append([cka(x, y) for x, y in zip(reference, layers)])
        print(f"{step:>8}{losses[0]:>10.2f}{losses[1]:>8.2f}   {both:>10.2f}{left:>9.2f}{right:>9.2f}{left - both:>10.2f}   "
              + "".join(f"{value:>6.2f}" for value in similar[-1]))  # fmt: skip
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if draw(out, steps, switch, np.array(costs), np.array(similar)):
        print(f"drawn in {out}")


if __name__ == "__main__":
    main()
