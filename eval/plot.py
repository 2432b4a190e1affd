"""The figure of a run: both validation losses and the training loss, before and after the switch.

python -m eval.plot out/demo
"""

import itertools
import math
import sys
from pathlib import Path

from checkpoint import read_metrics
from errors import DataError


def summary(out_dir, switch_step):
    """Return both validation losses of a run at its start, at the switch and at its end, as lines of text."""
    evaluated = {line["step"]: line for line in read_metrics(out_dir) if "val_clm_loss" in line}
    moments = {"start": min(evaluated), "switch": switch_step, "end": max(evaluated)}
    lines = ["validation loss       CLM     MLM   (nats per predicted token)"]
    for name, step in moments.items():
        if step in evaluated:
            clm, mlm = evaluated[step]["val_clm_loss"], evaluated[step]["val_mlm_loss"]
            lines.append(f"{name + f', step {step}':<20}{clm:>6.3f}  {mlm:>6.3f}")
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
    for phase, color in (("clm", "#9db8d9"), ("mlm", "#e8b78a")):
        losses = [line["loss"] if line["phase"] == phase else math.nan for line in train]  # a gap for the other phase
        if not all(map(math.isnan, losses)):
            axes.plot(train_steps, losses, color=color, lw=1, label=f"training, {phase.upper()} phase")
    evaluated = [line for line in lines if "val_clm_loss" in line]
    steps = [line["step"] for line in evaluated]
    for key, color, style in (("val_clm_loss", "#1f4e8c", "o-"), ("val_mlm_loss", "#b3541e", "s--")):
        losses = [line[key] for line in evaluated]
        axes.plot(steps, losses, style, color=color, ms=4, label=f"validation, {key[4:7].upper()}")
    switches = [(a["step"], b["phase"].upper()) for a, b in itertools.pairwise(lines) if a["phase"] != b["phase"]]
    for n, (step, phase) in enumerate(switches):
        axes.axvline(step, color="0.5", lw=1, ls=":")
        height, axis = 1 - 0.04 * (n % 2), axes.get_xaxis_transform()
        axes.text(step, height, f" to {phase}", transform=axis, va="top", color="0.35", fontsize=8)
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
