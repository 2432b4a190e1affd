"""Compare the losses of several runs at equal numbers of tokens seen, and at equal numbers of tokens predicted.

    python -m eval.lesson per_token --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM only the masked ones. For each run and step, the loss is the
validation loss of the objective trained at that step, of MLM if it is both. The last lines are two rulers for a loss:
ln V, that of a model that knows nothing, and the unigram cross-entropy, that of one that knows how frequent each token is.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np

from data.loader import streams_of
from data.shards import load_data
from eval.lesson.explain import print_table
from eval.plot import COLORS, new_figure, read_metrics, save_figure

runs = ("out/clm", "out/mlm")  # folders of runs on the same data
out = "out/per_token.png"  # the figure


def read_config(out_dir):
    return json.loads(Path(out_dir, "config.json").read_text())


def loss_curve(out_dir):
    """Return {step: (tokens seen, tokens predicted, validation loss of that step's objective)} of a run."""
    config, lines = read_config(out_dir), read_metrics(out_dir)
    T, settings = config["model"]["seq_len"], config["settings"]
    points, predicted, ratio = {}, 0, settings["mask_ratio"][0]
    for before, line in zip(lines[:1] + lines, lines):
        ratio = line.get("mask_ratio", ratio)
        clm, mlm = (T - 1) / T, round(ratio * T) / T  # the fraction of a window's tokens that each objective predicts
        if settings.get("few_targets"):  # a setting that solutions/few_targets.patch adds
            clm *= mlm
        clm_windows = {"clm": 1, "mlm": 0}.get(line["phase"], settings["clm_windows"])
        predicted += (clm_windows * clm + (1 - clm_windows) * mlm) * (line["tokens"] - before["tokens"])
        if "val_clm_loss" in line:
            seen, loss = line["tokens"] - lines[0]["tokens"], "val_clm_loss" if clm_windows == 1 else "val_mlm_loss"
            points[line["step"]] = (seen, round(predicted), line[loss])
    return points


def unigram_loss(data):
    """Return the losses of both splits, in nats per token, under the train split's token frequencies (a shard of each)."""
    streams = [streams_of(load_data(data), split)[0] for split in ("train", "val")]  # of a mixture: the first source
    train, val = (stream.shard(0)[:10_000_000] for stream in streams)
    counts = 1 + np.bincount(train, minlength=streams[0].vocab_size)
    losses = -np.log(counts / counts.sum())
    return losses[train].mean(), losses[val].mean()


def table(curves):
    """Yield the rows of the table, for the steps that all runs have evaluated. curves: {run: its loss_curve}."""
    yield "step", "tokens seen", *(word for run in curves for word in (f"{run}: predicted", "loss"))
    for step in sorted(set.intersection(*map(set, curves.values()))):
        points = [curve[step] for curve in curves.values()]
        yield str(step), f"{points[0][0]:,}", *(cell for p in points for cell in (f"{p[1]:,}", f"{p[2]:.2f}"))


def draw(figure, curves, marks):
    """Draw each run's loss by tokens seen and by tokens predicted, and a ruler with `marks`, {name: loss}."""
    *panels, ruler = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 3))
    for axes, column, label in zip(panels, (0, 1), ("tokens seen (millions)", "tokens predicted (millions)")):
        for style, (name, points) in zip(itertools.cycle(("o-", "s--", "^:", "D-.")), curves.items()):
            x, y = [p[column] / 1e6 for p in points.values()], [p[2] for p in points.values()]
            axes.plot(x, y, style, color=COLORS[read_metrics(name)[-1]["phase"]], ms=4, label=Path(name).name)
        for loss in marks.values():
            axes.axhline(loss, color="0.5", lw=0.8, ls=":")
        axes.set_xlabel(label)
    panels[0].set_ylabel("validation loss (nats per predicted token)")
    panels[1].legend()
    ruler.set_xlabel("a ruler for losses")
    ruler.set_xticks([])
    ends = {f"{Path(run).name}, at its end": [*points.values()][-1][2] for run, points in curves.items()}
    for name, loss in (marks | ends).items():
        ruler.plot((0, 0.1), (loss, loss), color="0")
        ruler.text(0.13, loss, f"{loss:.2f}  {name}", va="center", fontsize=8)
    ruler.set_xlim(0, 1)


def check(cfg):
    unknown = [run for run in cfg.runs if not Path(run, "metrics.jsonl").exists()]
    if unknown or not cfg.runs:
        yield f"expected folders of runs of train.py, got {', '.join(unknown) or 'none'}"
    elif len({read_config(run)["data_fingerprint"] for run in cfg.runs}) > 1:
        yield "the runs were trained on different data"


def main(cfg):
    curves, config = {run: loss_curve(run) for run in cfg.runs}, read_config(cfg.runs[0])
    on_train, on_val = unigram_loss(config["settings"]["data"])
    nothing = math.log(config["model"]["vocab_size"])
    print_table(table(curves), str.rjust)
    print(f"knows nothing, ln V: {nothing:.2f}")
    print(f"knows token frequencies: {on_train:.2f} on the training text, {on_val:.2f} on the validation text")
    if figure := new_figure(10, 3.4):
        draw(figure, curves, {"knows nothing, ln V": nothing, "token frequencies": on_val})
        save_figure(figure, cfg.out)
        print(f"drawn in {cfg.out}")
