"""Draw leads.png: the lead of 25 % CLM over pure MLM in retrieval, against tokens per parameter of the blocks.

    python docs/results/leads.py
"""

import sys

sys.path.insert(0, ".")
import studies
from eval.plot import new_figure

SEEDS = studies.SEEDS_OF_THE_TEST
LINES = {  # width: [(tokens per parameter of the blocks, study, pattern of the models' names, more)]
    "width 64": [(12, "dose", "(.+)", dict(seed=SEEDS)), (48, "dose", "(.+)-20k", dict(seed=SEEDS))],
    "width 128": [(13, "cause", "(.+)-10.2M", {}), (52, "cause", "(.+)-41M", {})],
    "width 192": [(13.4, "cause", "(.+)-192", {})],
}
COLORS = "#0072B2", "#D55E00", "#009E73"


def lead(study, pattern, more):
    """Return the mean lead on SciFact and half of its 95 % interval."""
    chosen = studies.choose(studies.models(studies.table(f"study_{study}/results.zip"), pattern, **more))
    scores = studies.resample(study, chosen)
    both = [studies.means_of(scores, recipe, ("scifact",)) for recipe in ("clm25-mlm", "mlm")]
    return studies.compare(studies.differences(*both))[:2]


axes = new_figure(6.5, 3.8).subplots()
for number, (name, points) in enumerate(LINES.items()):
    x = [tokens for tokens, *_ in points]
    y, half = zip(*(lead(*point) for _, *point in points))
    print(name, *zip(x, y, half))
    axes.errorbar(x, y, half, color=COLORS[number], marker="os^"[number], capsize=3, label=f"{name}, SciFact")
paper = [(62, 5.04), (113, -0.25), (215, 0.33)]  # as claims.py prints them
axes.plot(*zip(*paper), color="black", marker="D", ls="--", label="the paper, 610M parameters")
axes.axhline(0, color="0.6", lw=0.8)
axes.set_xscale("log")
axes.set_xticks([13, 26, 52, 104, 208], ["13", "26", "52", "104", "208"])
axes.set_xticks([], minor=True)
axes.set(xlabel="tokens per parameter of the blocks", ylabel="lead of 25 % CLM in retrieval (points)")
axes.legend()
axes.figure.savefig("docs/results/leads.png", dpi=150)
