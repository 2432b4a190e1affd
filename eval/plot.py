"""The figure of a run: both validation losses and the training loss, before and after the switch.

    python eval/plot.py out/demo
"""

import itertools
import json
import math
import sys
from pathlib import Path


def read_metrics(out_dir):
    """The lines of a run's metrics.jsonl, a dict each."""
    return [json.loads(line) for line in (Path(out_dir) / "metrics.jsonl").read_text().splitlines()]


def summary(out_dir, switch_step):
    """Both validation losses of a run at its start, its switch and its end, as lines of text."""
    evaluated = {line["step"]: line for line in read_metrics(out_dir) if "val_clm_loss" in line}
    moments = {"start": min(evaluated), "switch": switch_step, "end": max(evaluated)}
    lines = ["validation loss       CLM     MLM   (nats per predicted token)"]
    for name, step in moments.items():
        if step in evaluated:
            clm, mlm = evaluated[step]["val_clm_loss"], evaluated[step]["val_mlm_loss"]
            lines.append(f"{name + f', step {step}':<20}{clm:>6.3f}  {mlm:>6.3f}")
    return "\n".join(lines)


def plot_run(out_dir):
    """Writes out_dir/loss.png and returns its path, or None where matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = read_metrics(out_dir)
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    train = [line for line in lines if "loss" in line]
    for phase, colour in (("clm", "#9db8d9"), ("mlm", "#e8b78a")):
        losses = [line["loss"] if line["phase"] == phase else math.nan for line in train]  # a gap for the other phase
        if not all(map(math.isnan, losses)):
            axes.plot([line["step"] for line in train], losses, color=colour, lw=1,
                      label=f"training, {phase.upper()} phase")  # fmt: skip
    evaluated = [line for line in lines if "val_clm_loss" in line]
    for key, colour, marker in (("val_clm_loss", "#1f4e8c", "o-"), ("val_mlm_loss", "#b3541e", "s--")):
        axes.plot([line["step"] for line in evaluated], [line[key] for line in evaluated], marker, color=colour, ms=4,
                  label=f"validation, {key[4:7].upper()}")  # fmt: skip
    switches = [(a["step"], b["phase"].upper()) for a, b in itertools.pairwise(lines) if a["phase"] != b["phase"]]
    for n, (step, phase) in enumerate(switches):
        axes.axvline(step, color="0.5", lw=1, ls=":")
        axes.annotate(f" to {phase}", (step, 1 - 0.04 * (n % 2)), xycoords=("data", "axes fraction"), va="top", color="0.35",
                      fontsize=8)  # fmt: skip
    axes.set(xlabel="step", ylabel="loss (nats per predicted token)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    path = Path(out_dir) / "loss.png"
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return path


if __name__ == "__main__":
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "metrics.jsonl").exists():
        sys.exit("usage: python eval/plot.py OUT_DIR    (the folder of a run, with its metrics.jsonl)")
    print(plot_run(sys.argv[1]) or "matplotlib is not installed: pip install -r requirements-extra.txt")
