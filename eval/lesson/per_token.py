"""Compare the losses of several runs at equal numbers of tokens seen, and at equal numbers of tokens predicted.

    python -m eval.lesson per_token --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM only the masked ones. For each run and step, the loss is the
validation loss of the objective that was trained. The last lines are two rulers for a loss: ln V, that of a model that
knows nothing, and the unigram cross-entropy, that of one that knows how frequent each token is.
"""

import itertools
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


def loss_curve(lines, T):
    """Return {step: (tokens seen, tokens predicted, validation loss)} of a run's steps that trained one objective.

    lines: of its log. T: tokens of a window.
    """
    points = {}
    predicted = of_window = 0
    for before, line in itertools.pairwise([lines[0], *lines]):
        if line["phase"] == "clm":
            of_window = T - 1
        elif "mask_ratio" in line:
            of_window = round(line["mask_ratio"] * T)
        predicted += (line["tokens"] - before["tokens"]) * of_window // T
        loss = line.get(f"val_{line['phase']}_loss")
        if loss is not None:
            points[line["step"]] = (line["tokens"] - lines[0]["tokens"], predicted, loss)
    return points


def unigram_loss(data):
    """Return the loss of the validation text under the training text's token frequencies (a shard of each)."""
    data = load_data(data)
    train, val = (streams_of(data, split)[0] for split in ("train", "val"))  # of a mixture: the first source
    counts = 1 + np.bincount(train.shard(0)[:10_000_000], minlength=train.vocab_size)
    losses = -np.log(counts / counts.sum())
    return losses[val.shard(0)[:10_000_000]].mean()


def draw(path, curves, colors, rulers):
    """Draw the losses over tokens seen and over tokens predicted. curves: see `loss_curve`; colors: also by run."""
    figure = new_figure(9, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for column, (axes, label) in enumerate(zip(panels, ("seen", "predicted"))):
        for run, curve in curves.items():
            points = np.array(list(curve.values())).T
            axes.plot(points[column] / 1e6, points[2], "o-", color=colors[run], ms=4, label=Path(run).name)
        for name, loss in rulers.items():
            axes.axhline(loss, color="0.5", lw=0.8, ls=":")
            axes.text(0, loss, name, va="bottom", color="0.35", fontsize=8)
        axes.set_xlabel(f"tokens {label} (millions)")
    panels[0].set_ylabel("validation loss (nats per predicted token)")
    panels[1].legend()
    save_figure(figure, path)
    print(f"drawn in {path}")


def main(cfg):
    configs = [json.loads(Path(run, "config.json").read_text()) for run in cfg.runs]
    if len({config["data_fingerprint"] for config in configs}) != 1:
        raise DataError("runs: expected folders of runs of train.py on the same data")
    logs = {run: read_metrics(run) for run in cfg.runs}
    if empty := [run for run, log in logs.items() if not log]:
        raise DataError(f"runs: {empty[0]} has no log (metrics.jsonl)")
    curves = {run: loss_curve(logs[run], config["model"]["seq_len"]) for run, config in zip(cfg.runs, configs)}
    rows = [["step", "tokens seen"]]
    for run in cfg.runs:
        rows[0] += [f"{run}: predicted", "loss"]
    for step in sorted(set.intersection(*map(set, curves.values()))):  # that all runs have evaluated
        rows.append([str(step), ""])
        for seen, predicted, loss in (curve[step] for curve in curves.values()):
            rows[-1][1] = f"{seen:,}"  # of the last run
            rows[-1] += [f"{predicted:,}", f"{loss:.2f}"]
    print(aligned(rows, str.rjust))
    rulers = {"knows nothing, ln V": math.log(configs[0]["model"]["vocab_size"])}
    rulers["knows token frequencies"] = unigram_loss(configs[0]["settings"]["data"])
    for name, loss in rulers.items():
        print(f"{name}: {loss:.2f}")
    colors = {run: COLORS.get(log[-1]["phase"]) for run, log in logs.items()}
    draw(cfg.out, curves, colors, rulers)
