"""Draw scores by pretraining budget, with a line for each percentage of CLM steps: a row of panels for each study.

    python -m eval.lesson budgets --tables=docs/results/lesson/paper.csv,docs/results/lesson/study.csv

A table has the columns tokens_billions, clm_percent, family, score, half_interval. With 0 tokens it is random weights.
"""

import csv
import itertools
from pathlib import Path

import configurator
from eval.plot import new_figure, save_figure

tables = ("docs/results/lesson/paper.csv", "docs/results/lesson/study.csv")  # one for each study
out = "out/budgets.png"  # the figure

COLORS = {0: "#b3541e", 25: "#e8963f", 50: "#7a7a7a", 75: "#86b0e0", 100: "#1f4e8c"}  # of each percentage of CLM


def draw(axes, family, rows):
    """Draw the scores of one family of tasks: rows of a table."""
    columns = "clm_percent", "tokens_billions", "score", "half_interval"
    points = sorted(tuple(float(row[name]) for name in columns) for row in rows if row["family"] == family)
    for _, _, score, _ in [point for point in points if not point[1]]:
        axes.axhline(score, color="0.4", lw=1, ls=":", label="random weights")
    points = [point for point in points if point[1]]
    for n, (percent, line) in enumerate(itertools.groupby(points, lambda point: point[0])):
        _, tokens, scores, halves = zip(*line)
        beside = [x * 1.015 ** (n - 2) for x in tokens]  # so that intervals do not hide each other
        name = {0: "pure MLM", 100: "pure CLM"}.get(percent, f"{percent:g} % CLM, then MLM")
        axes.errorbar(beside, scores, halves, fmt="o-", color=COLORS[percent], ms=3, lw=1.2, label=name)
    axes.set_xscale("log")
    axes.set_xticks(tokens, [f"{x:g}B" if x >= 1 else f"{1000 * x:.2g}M" for x in tokens])
    axes.set_xticks([], minor=True)
    axes.set(title=family, xlabel="tokens of pretraining")
    axes.spines[["top", "right"]].set_visible(False)


def main(argv):
    cfg = configurator.load(__file__, argv, command="python -m eval.lesson budgets")
    studies = [list(csv.DictReader(Path(path).read_text(encoding="utf-8").splitlines())) for path in cfg.tables]
    if not (figure := new_figure(12, 3.2 * len(studies))):
        return print("the figure needs matplotlib: pip install matplotlib")
    for path, rows, part in zip(cfg.tables, studies, figure.subfigures(len(studies), squeeze=False)[:, 0]):
        families = list(dict.fromkeys(row["family"] for row in rows))
        panels = part.subplots(1, len(families), squeeze=False)[0]
        for axes, family in zip(panels, families):
            draw(axes, family, rows)
        panels[0].set_ylabel(f"{Path(path).stem}: score")
        panels[-1].legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    save_figure(figure, cfg.out)
    print(f"drawn in {cfg.out}")
