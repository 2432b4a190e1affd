"""Compare the losses of several runs at equal numbers of tokens seen, and at equal numbers of tokens predicted.

    python -m eval.lesson per_token --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM only the masked ones. For each run and step, the loss is the
validation loss of the objective trained at that step, of MLM if it is both. The last line of the table is the unigram
cross-entropy: the loss of a model that knows how frequent each token is and nothing else.
"""

import itertools
import json
from pathlib import Path

import numpy as np

import configurator
from data.loader import TokenStream
from data.objective import mask_ratios
from data.shards import load_meta
from eval.plot import new_figure, read_metrics, save_figure

runs = ("out/clm", "out/mlm")  # folders of runs on the same data
out = "out/per_token.png"  # the figure


def read_config(out_dir):
    return json.loads(Path(out_dir, "config.json").read_text())


def loss_curve(out_dir):
    """Return {step: (tokens seen, tokens predicted, validation loss of that step's objective)} of a run."""
    config, lines = read_config(out_dir), read_metrics(out_dir)
    T, settings = config["model"]["seq_len"], config["settings"]
    points, predicted, ratio = {}, 0, mask_ratios(settings)[0]
    for before, line in zip(lines[:1] + lines, lines):
        ratio = line.get("mask_ratio", ratio)
        clm, mlm = (T - 1) / T, round(ratio * T) / T  # the fraction of a window's tokens that each objective predicts
        if settings.get("few_targets"):  # a setting that solutions/few_targets.patch adds
            clm *= mlm
        clm_windows = {"clm": 1, "mlm": 0}.get(line["phase"], settings.get("clm_windows"))
        predicted += (clm_windows * clm + (1 - clm_windows) * mlm) * (line["tokens"] - before["tokens"])
        if "val_clm_loss" in line:
            seen, loss = line["tokens"] - lines[0]["tokens"], "val_clm_loss" if clm_windows == 1 else "val_mlm_loss"
            points[line["step"]] = (seen, round(predicted), line[loss])
    return points


def unigram_loss(data, limit=10_000_000):
    """Return the losses of both splits, in nats per token, under the token frequencies of the train split.

    data: a prepared folder. limit: how many tokens to read of the first shard of each split.
    """
    meta = load_meta(data)
    train, val = (TokenStream(data, meta, split).shard(0)[:limit] for split in ("train", "val"))
    counts = 1 + np.bincount(train, minlength=meta["tokenizer"]["vocab_size"])
    losses = -np.log(counts / counts.sum())
    return losses[train].mean(), losses[val].mean()


def table(curves, unigram):
    """Yield the lines of the table. curves: {run: its loss_curve}."""
    yield f"{'':>20}" + "".join(f"{run:>24}" for run in curves)
    yield f"{'step':>6}{'tokens seen':>14}" + f"{'predicted':>16}{'loss':>8}" * len(curves)
    for step in sorted(set().union(*curves.values())):
        points = [curve.get(step) for curve in curves.values()]
        seen = next(point[0] for point in points if point)
        yield f"{step:>6}{seen:>14,}" + "".join(f"{p[1]:>16,}{p[2]:>8.2f}" if p else " " * 24 for p in points)
    yield "token frequencies alone: {:.2f} on the training text, {:.2f} on the validation text".format(*unigram)


def draw(figure, curves, unigram):
    """Draw each run's loss by tokens seen and by tokens predicted."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, column, label in zip(panels, (0, 1), ("tokens seen (millions)", "tokens predicted (millions)")):
        for marker, (name, points) in zip(itertools.cycle("os^D"), curves.items()):
            x, y = [p[column] / 1e6 for p in points.values()], [p[2] for p in points.values()]
            axes.plot(x, y, marker + "-", ms=4, label=name)
        axes.axhline(unigram[1], color="0.5", lw=1, ls=":", label="token frequencies alone")
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("validation loss (nats per predicted token)")
    panels[1].legend(frameon=False)


def check_runs(runs):
    """Yield what is wrong with folders of runs, one sentence each."""
    unknown = [run for run in runs if not Path(run, "metrics.jsonl").exists()]
    if unknown or not runs:
        yield f"expected folders of runs of train.py, got {', '.join(unknown) or 'none'}"
    elif len({read_config(run)["data_fingerprint"] for run in runs}) > 1:
        yield "the runs were trained on different data"


def main(argv):
    cfg = configurator.load(__file__, argv, lambda cfg: check_runs(cfg.runs), "python -m eval.lesson per_token")
    curves = {run: loss_curve(run) for run in cfg.runs}
    unigram = unigram_loss(read_config(cfg.runs[0])["settings"]["data"])
    print("\n".join(table(curves, unigram)))
    if figure := new_figure(8, 3.4):
        draw(figure, curves, unigram)
        save_figure(figure, cfg.out)
        print(f"drawn in {cfg.out}")
