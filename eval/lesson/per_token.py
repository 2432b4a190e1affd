"""What the losses of several runs are per token: at the same number of tokens seen, and of tokens predicted.

    python eval/per_token.py --runs=out/clm,out/mlm

CLM predicts every token of a window but the first, MLM the masked ones only. Each run counts with the validation loss
of its own objective at that step. The last line is the loss of a model that knows how frequent each token is and
nothing else.
"""

import json
import sys
from pathlib import Path

import numpy as np

import configurator
from data.loader import TokenStream
from data.shards import load_meta
from errors import DataError
from eval.plot import read_metrics

runs = ("out/clm", "out/mlm")  # folders of runs on the same data
out = "out/per_token.png"  # the figure


def curve(out_dir):
    """{step: (tokens seen, tokens predicted, validation loss of the step's objective)}, counted from the run's start."""
    s, T = facts(out_dir)["settings"], facts(out_dir)["model"]["seq_len"]
    share = {"clm": (T - 1) / T, "mlm": round(s["mask_ratio"] * T) / T}  # of a window's tokens that are predicted
    points, lines, predicted = {}, read_metrics(out_dir), 0
    for before, line in zip(lines[:1] + lines, lines):
        predicted += share[line["phase"]] * (line["tokens"] - before["tokens"])
        if "val_clm_loss" in line:
            seen = line["tokens"] - lines[0]["tokens"]
            points[line["step"]] = (seen, round(predicted), line[f"val_{line['phase']}_loss"])
    return points


def facts(out_dir):
    return json.loads((Path(out_dir) / "config.json").read_text())


def frequency_loss(data, most=10_000_000):
    """Nats per token of the validation split under the frequencies of the train split (its first `most` tokens)."""
    meta = load_meta(data)
    train, val = (TokenStream(data, meta, split) for split in ("train", "val"))
    counts = 1 + np.bincount(train.shards[0][:most], minlength=meta["tokenizer"]["vocab_size"])
    return -np.log(counts / counts.sum())[val.shards[0][:most]].mean()


def draw(path, curves, level):
    """Writes the figure; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True, layout="constrained")
    for axes, column, label in zip(panels, (0, 1), ("tokens seen (millions)", "tokens predicted (millions)")):
        for i, (name, points) in enumerate(curves.items()):
            x, y = [p[column] / 1e6 for p in points.values()], [p[2] for p in points.values()]
            style, colour = (("o-", "#1f4e8c"), ("s--", "#b3541e"), ("^:", "0.4"), ("D-.", "0"))[i % 4]
            axes.plot(x, y, style, color=colour, ms=4, label=name)
        axes.axhline(level, color="0.5", lw=1, ls=":")
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].annotate("token frequencies alone", (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                       color="0.35", fontsize=8)  # fmt: skip
    panels[0].set_ylabel("validation loss (nats per predicted token)")
    panels[1].legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def check(s):
    strangers = [run for run in s["runs"] if not (Path(run) / "metrics.jsonl").exists()]
    yield from (f"runs: {run} is not the folder of a run of train.py" for run in strangers)
    if not s["runs"]:
        yield "runs: give the folders of one or more runs"
    elif not strangers and len({facts(run)["data_fingerprint"] for run in s["runs"]}) > 1:
        yield "runs: they were trained on different data"
    if Path(s["out"]).suffix != ".png":
        yield f"out={s['out']}: must be the name of a .png file"


def main():
    globals().update(configurator.load(__file__, sys.argv[1:], check))
    curves = {run: curve(run) for run in runs}
    try:
        level = frequency_loss(facts(runs[0])["settings"]["data"])
    except DataError as error:
        sys.exit(f"{error}")
    print(f"{'':>20}" + "".join(f"{run:>24}" for run in runs))
    print(f"{'step':>6}{'tokens seen':>14}" + f"{'predicted':>16}{'loss':>8}" * len(runs))
    for step in sorted(set().union(*curves.values())):
        cells = [curves[run].get(step) for run in runs]
        seen = next(cell for cell in cells if cell)[0]
        print(f"{step:>6}{seen:>14,}" + "".join(f"{c[1]:>16,}{c[2]:>8.2f}" if c else " " * 24 for c in cells))
    print(f"token frequencies alone: {level:.2f} nats per token")
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if draw(out, curves, level):
        print(f"drawn in {out}")


if __name__ == "__main__":
    main()
