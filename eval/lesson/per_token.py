"""Compare the losses of several runs at equal numbers of tokens seen, and at equal numbers of tokens predicted.

    python -m eval.lesson per_token --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM only the masked ones. For each run and step, the loss is the
validation loss of the objective trained at that step, of MLM if it is both. The last lines are two rulers for a loss:
ln V, that of a model that knows nothing, and the unigram cross-entropy, that of one that knows how frequent each token is.
"""

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

STYLES = ["o-", "s--", "^:", "D-."]  # of the curves of the runs


def read_config(out_dir):
    return json.loads(Path(out_dir, "config.json").read_text())


def loss_curve(out_dir):
    """Return {step: (tokens seen, tokens predicted, validation loss of that step's objective)} of a run."""
    config = read_config(out_dir)
    settings = config["settings"]
    T = config["model"]["seq_len"]
    ratio = settings["mask_ratio"][0]
    lines = read_metrics(out_dir)
    tokens = first_tokens = lines[0]["tokens"]
    predicted = 0
    points = {}
    for line in lines:
        ratio = line.get("mask_ratio", ratio)
        mlm = round(ratio * T) / T  # the fraction of a window's tokens that MLM predicts
        clm = (T - 1) / T  # and CLM
        if settings.get("few_targets"):  # a setting that solutions/few_targets.patch adds
            clm *= mlm
        clm_windows = {"clm": 1, "mlm": 0}.get(line["phase"], settings["clm_windows"])
        fraction = clm_windows * clm + (1 - clm_windows) * mlm
        predicted += fraction * (line["tokens"] - tokens)
        tokens = line["tokens"]
        if "val_clm_loss" in line:
            loss = line["val_clm_loss"] if clm_windows == 1 else line["val_mlm_loss"]
            points[line["step"]] = (tokens - first_tokens, round(predicted), loss)
    return points


def unigram_loss(data):
    """Return the losses of both splits, in nats per token, under the train split's token frequencies (a shard of each)."""
    data = load_data(data)
    stream = streams_of(data, "train")[0]  # of a mixture: the first source
    train = stream.shard(0)[:10_000_000]
    val = streams_of(data, "val")[0].shard(0)[:10_000_000]
    counts = 1 + np.bincount(train, minlength=stream.vocab_size)
    losses = -np.log(counts / counts.sum())
    return losses[train].mean(), losses[val].mean()


def table(curves):
    """Yield the rows of the table, for the steps that all runs have evaluated. curves: {run: its loss_curve}."""
    header = ["step", "tokens seen"]
    for run in curves:
        header += [f"{run}: predicted", "loss"]
    yield header
    first, *others = curves.values()
    for step, (seen, _, _) in first.items():
        if all(step in curve for curve in others):
            row = [str(step), f"{seen:,}"]
            for curve in curves.values():
                _, predicted, loss = curve[step]
                row += [f"{predicted:,}", f"{loss:.2f}"]
            yield row


def draw(figure, curves, marks):
    """Draw each run's loss by tokens seen and by tokens predicted, and a ruler with `marks`, {name: loss}."""
    by_seen, by_predicted, ruler = figure.subplots(1, 3, sharey=True, width_ratios=(4, 4, 3))
    ends = {}
    for number, (run, curve) in enumerate(curves.items()):
        seen, predicted, losses = np.array(list(curve.values())).T
        name = Path(run).name
        style = STYLES[number % len(STYLES)]
        color = COLORS[read_metrics(run)[-1]["phase"]]
        by_seen.plot(seen / 1e6, losses, style, color=color, ms=4)
        by_predicted.plot(predicted / 1e6, losses, style, color=color, ms=4, label=name)
        ends[f"{name}, at its end"] = losses[-1]
    for loss in marks.values():
        by_seen.axhline(loss, color="0.5", lw=0.8, ls=":")
        by_predicted.axhline(loss, color="0.5", lw=0.8, ls=":")
    by_seen.set_ylabel("validation loss (nats per predicted token)")
    by_seen.set_xlabel("tokens seen (millions)")
    by_predicted.set_xlabel("tokens predicted (millions)")
    by_predicted.legend()

    for name, loss in (marks | ends).items():
        ruler.plot((0, 0.1), (loss, loss), color="0")
        ruler.text(0.13, loss, f"{loss:.2f}  {name}", va="center", fontsize=8)
    ruler.set_xlabel("a ruler for losses")
    ruler.set_xticks([])
    ruler.set_xlim(0, 1)


def check(cfg):
    unknown = [run for run in cfg.runs if not Path(run, "metrics.jsonl").exists()]
    if unknown or not cfg.runs:
        yield f"expected folders of runs of train.py, got {', '.join(unknown) or 'none'}"
        return
    fingerprints = {read_config(run)["data_fingerprint"] for run in cfg.runs}
    if len(fingerprints) > 1:
        yield "the runs were trained on different data"


def main(cfg):
    config = read_config(cfg.runs[0])
    curves = {run: loss_curve(run) for run in cfg.runs}
    on_train, on_val = unigram_loss(config["settings"]["data"])
    nothing = math.log(config["model"]["vocab_size"])
    print_table(table(curves), str.rjust)
    print(f"knows nothing, ln V: {nothing:.2f}")
    print(f"knows token frequencies: {on_train:.2f} on the training text, {on_val:.2f} on the validation text")
    figure = new_figure(10, 3.4)
    if figure:
        draw(figure, curves, {"knows nothing, ln V": nothing, "token frequencies": on_val})
        save_figure(figure, cfg.out)
        print(f"drawn in {cfg.out}")
