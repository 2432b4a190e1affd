"""The figure of a run: both validation losses and the training loss, before and after the switch.

python -m eval.plot out/demo
"""

import itertools
import math
import sys
from pathlib import Path

from checkpoint import read_metrics
from errors import DataError

NAMES = {"clm": "CLM", "mlm": "MLM", "mixed": "CLM + MLM"}  # of the phases
COLORS = {"clm": "#1f4e8c", "mlm": "#b3541e", "mixed": "#5d7038"}


def switches(lines):
    """Return the pairs of neighboring lines of a log between which its phase changes."""
    return [(a, b) for a, b in itertools.pairwise(lines) if a["phase"] != b["phase"]]


def summary(out_dir):
    """Return both validation losses of a run at its start, at its switches if these are few, and at its end, as text."""
    log = read_metrics(out_dir)
    evaluated, ends = [line for line in log if "val_clm_loss" in line], [line for line, _ in switches(log)]
    moments = [("start", evaluated[0]), *(("switch", line) for line in ends if len(ends) < 4), ("end", evaluated[-1])]
    lines = ["validation loss       CLM     MLM   (nats per predicted token)"]
    for name, line in moments:
        if line in evaluated:
            name += f", step {line['step']}"
            lines.append(f"{name:<20}{line['val_clm_loss']:>6.3f}  {line['val_mlm_loss']:>6.3f}")
    return "\n".join(lines)


def new_figure(width, height):
    """Return an empty matplotlib Figure, its sizes in inches; None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure, path):
    """Write a figure as a PNG file; make its folder where it is missing."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, format="png")


def plot_run(out_dir):
    """Write out_dir/loss.png and return its path; None where matplotlib is not installed."""
    if not (figure := new_figure(7, 4.2)):
        return None
    axes, lines = figure.subplots(), read_metrics(out_dir)
    train = [line for line in lines if "loss" in line]
    train_steps = [line["step"] for line in train]
    for phase, color in (("clm", "#9db8d9"), ("mlm", "#e8b78a"), ("mixed", "#a8b89a")):
        losses = [line["loss"] if line["phase"] == phase else line.get(f"{phase}_loss", math.nan) for line in train]
        if not all(map(math.isnan, losses)):  # nan: a gap for the other phase
            axes.plot(train_steps, losses, color=color, lw=1, label=f"training, {NAMES[phase]}")
    evaluated = [line for line in lines if "val_clm_loss" in line]
    steps = [line["step"] for line in evaluated]
    for name, style in (("clm", "o-"), ("mlm", "s--")):
        losses = [line[f"val_{name}_loss"] for line in evaluated]
        axes.plot(steps, losses, style, color=COLORS[name], ms=4, label=f"validation, {NAMES[name]}")
    for n, (before, line) in enumerate(switches(lines)):
        axes.axvline(before["step"], color="0.5", lw=1, ls=":")
        height, axis, name = 1 - 0.04 * (n % 2), axes.get_xaxis_transform(), NAMES[line["phase"]]
        axes.text(before["step"], height, f" to {name}", transform=axis, va="top", color="0.35", fontsize=8)
    axes.set(xlabel="step", ylabel="loss (nats per predicted token)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    save_figure(figure, path := Path(out_dir) / "loss.png")
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m eval.plot OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    try:
        print(plot_run(sys.argv[1]) or "matplotlib is not installed: pip install -r requirements-extra.txt")
    except (DataError, OSError) as error:
        sys.exit(str(error))
