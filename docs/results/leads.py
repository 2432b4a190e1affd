"""Draw leads.png: the lead of 25 % CLM over pure MLM in retrieval, against tokens per parameter of the blocks.

    python docs/results/leads.py
"""

import sys

sys.path.insert(0, ".")
import studies
from eval.plot import new_figure

SEEDS = studies.SEEDS_OF_THE_TEST
STUDY = "study_{}/results.zip"
LINES = {  # width: [(tokens per parameter of the blocks, file, recipe of CLM first, pattern of the models' names, more)]
    "width 64": [
        (12, STUDY.format("dose"), "clm25-mlm", "(.+)", dict(seed=SEEDS)),
        (48, STUDY.format("dose"), "clm25-mlm", "(.+)-20k", dict(seed=SEEDS)),
    ],
    "width 128": [
        (13, STUDY.format("cause"), "clm25-mlm", "(.+)-10.2M", {}),
        (52, STUDY.format("cause"), "clm25-mlm", "(.+)-41M", {}),
    ],
    "width 192": [(13.4, STUDY.format("cause"), "clm25-mlm", "(.+)-192", {})],
    "width 64, novels": [(12.4, "study_ladder.csv", "clm25", "w64-(.+)-13", {})],
    "width 128, novels": [(13.8, "study_ladder.csv", "clm25", "w128-(.+)-13", {})],
    "width 256, novels, one seed": [(15.2, "study_ladder.csv", "clm25", "w256-(.+)-13", {})],
}
COLORS = "#0072B2", "#D55E00", "#009E73", "#0072B2", "#D55E00", "#CC79A7"


def lead(file, recipe, pattern, more):
    """Return the mean lead on SciFact and half of its 95 % interval, over seeds alone where there is no more."""
    chosen = studies.choose(studies.models(studies.table(file), pattern, **more))
    if file.endswith("zip"):
        scores = studies.resample(file[6:].partition("/")[0], chosen)
    else:
        scores = studies.print_scores(pattern, chosen)
    both = [studies.means_of(scores, name, ("scifact",)) for name in (recipe, "mlm")]
    difference = studies.differences(*both)
    if file.endswith("zip"):
        return studies.compare(difference)[:2]
    center, half = studies.stats.interval([each[0] for each in difference.values()])
    return center, half or 0.0  # of one seed there is no interval


axes = new_figure(6.5, 4.2).subplots()
for number, (name, points) in enumerate(LINES.items()):
    x = [tokens for tokens, *_ in points]
    y, half = zip(*(lead(*point) for _, *point in points))
    print(name, *zip(x, y, half))
    novels = "novels" in name
    style = dict(color=COLORS[number], marker="os^osv"[number], capsize=3, mfc="white" if novels else None)
    axes.errorbar(x, y, half, label=name if novels else f"{name}, textbooks", **style)
paper = [(62, 5.04), (113, -0.25), (215, 0.33)]  # as claims.py prints them
axes.plot(*zip(*paper), color="black", marker="D", ls="--", label="the paper, 610M parameters")
axes.axhline(0, color="0.6", lw=0.8)
axes.set_xscale("log")
axes.set_xticks([13, 26, 52, 104, 208], ["13", "26", "52", "104", "208"])
axes.set_xticks([], minor=True)
axes.set(xlabel="tokens per parameter of the blocks", ylabel="lead of 25 % CLM on SciFact (points)")
axes.legend()
axes.figure.savefig("docs/results/leads.png", dpi=150)
