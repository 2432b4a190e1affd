"""Compare the losses of several runs at equal numbers of tokens seen, and at equal numbers of tokens predicted.

    python -m eval.lesson per_token --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM only the masked ones. For each run and step, the loss is the
validation loss of the objective that was trained. The last lines are two rulers for a loss: ln V, that of a model that
knows nothing, and the unigram cross-entropy, that of one that knows how frequent each token is.
"""

import json
import math
from pathlib import Path

import numpy as np

from data.loader import streams_of
from data.shards import load_data
from errors import DataError
from eval.lesson.explain import aligned
from eval.plot import COLORS, new_figure, read_metrics, save_figure

runs = ("out/clm", "out/mlm")  # folders of runs on the same data
out = "out/per_token.png"  # the figure


def read_config(out_dir):
    return json.loads(Path(out_dir, "config.json").read_text())


def loss_curve(out_dir):
    """Return {step: (tokens seen, tokens predicted, validation loss)} of a run's steps that trained one objective."""
    T = read_config(out_dir)["model"]["seq_len"]
    lines = read_metrics(out_dir)
    tokens = first_tokens = lines[0]["tokens"]
    predicted = of_window = 0
    points = {}
    for line in lines:
        if line["phase"] == "clm":
            of_window = T - 1
        elif "mask_ratio" in line:
            of_window = round(line["mask_ratio"] * T)
        predicted += (line["tokens"] - tokens) * of_window // T
        tokens = line["tokens"]
        loss = line.get(f"val_{line['phase']}_loss")
        if loss is not None:
            points[line["step"]] = (tokens - first_tokens, predicted, loss)
    return points


def unigram_loss(data):
    """Return the loss of the validation text under the training text's token frequencies (a shard of each)."""
    data = load_data(data)
    stream = streams_of(data, "train")[0]  # of a mixture: the first source
    train = stream.shard(0)[:10_000_000]
    val = streams_of(data, "val")[0].shard(0)[:10_000_000]
    counts = 1 + np.bincount(train, minlength=stream.vocab_size)
    losses = -np.log(counts / counts.sum())
    return losses[val].mean()


def table(curves):
    """Yield the rows of the table, for the steps that all runs have evaluated. curves: {run: its loss_curve}."""
    yield ["step", "tokens seen", *(title for run in curves for title in (f"{run}: predicted", "loss"))]
    for step in sorted(set.intersection(*map(set, curves.values()))):
        row = []
        for curve in curves.values():
            seen, predicted, loss = curve[step]
            row += [f"{predicted:,}", f"{loss:.2f}"]
        yield [str(step), f"{seen:,}", *row]


def draw(figure, curves, rulers):
    """Draw each run's loss by tokens seen and by tokens predicted, and lines at `rulers`, {name: loss}."""
    panels = figure.subplots(1, 2, sharey=True)
    for column, (axes, label) in enumerate(zip(panels, ("seen", "predicted"))):
        for run, curve in curves.items():
            points = np.array(list(curve.values())).T
            color = COLORS.get(read_metrics(run)[-1]["phase"])
            axes.plot(points[column] / 1e6, points[2], "o-", color=color, ms=4, label=Path(run).name)
        for name, loss in rulers.items():
            axes.axhline(loss, color="0.5", lw=0.8, ls=":")
            axes.text(0, loss, name, va="bottom", color="0.35", fontsize=8)
        axes.set_xlabel(f"tokens {label} (millions)")
    panels[0].set_ylabel("validation loss (nats per predicted token)")
    panels[1].legend()


def main(cfg):
    configs = [read_config(run) for run in cfg.runs]
    if len({config["data_fingerprint"] for config in configs}) != 1:
        raise DataError("runs: expected folders of runs of train.py on the same data")
    curves = {run: loss_curve(run) for run in cfg.runs}
    frequencies = unigram_loss(configs[0]["settings"]["data"])
    nothing = math.log(configs[0]["model"]["vocab_size"])
    print(aligned(table(curves), str.rjust))
    print(f"knows nothing, ln V: {nothing:.2f}")
    print(f"knows token frequencies: {frequencies:.2f}")
    figure = new_figure(9, 3.6)
    draw(figure, curves, {"knows nothing": nothing, "knows token frequencies": frequencies})
    save_figure(figure, cfg.out)
    print(f"drawn in {cfg.out}")
