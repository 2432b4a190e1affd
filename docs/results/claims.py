"""Print the numbers of docs/findings.md's table of claims, from the results in this folder.

    python docs/results/claims.py

Run it in the main folder, because it imports the project's code.
"""

import csv
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev

FOLDER = Path(__file__).parent
sys.path[:0] = [".", str(FOLDER)]
import studies

import configurator
from data.flops import step_flops
from data.objective import CLM, MLM
from eval.study.plan import DEFAULTS
from model import Transformer
from run import model_config
from runtime import weights_on_meta

WIDTHS = {64: "--n_head=1 --d_model=64 --d_ff=192", 128: "", 192: "--n_head=3 --n_kv_head=1 --d_model=192 --d_ff=576"}
CAUSE = "study_cause/results.zip"
RATES = "0.0005", "0.001", "0.002", "0.004"  # the fine-tuning rates in the design of study_cause


def shape(arguments, vocab_size):
    """Return the ModelConfig that arguments of train.py make."""
    settings, problems = configurator.parse(arguments.split(), DEFAULTS)
    assert not problems, problems
    return model_config(settings, vocab_size)


def without_weights(config):
    """Return a Transformer whose weights take no memory."""
    with weights_on_meta():
        return Transformer(config)


def block_parameters(config):
    """Return the number of parameters of the blocks and norms, without the embedding and the output head."""
    parameters = sum(p.numel() for p in without_weights(config).parameters())
    return parameters - 2 * config.vocab_size * config.d_model


def papers_leads():
    """Print the paper's lead of 25 % CLM over pure MLM (610M), and the tokens per parameter of the blocks."""
    parameters = block_parameters(shape("config/610m.py", 128_256))
    scores = {}
    with open(FOLDER / "lesson" / "paper.csv", newline="") as file:
        for row in csv.DictReader(file):
            scores[row["family"], float(row["tokens_billions"]), row["clm_percent"]] = float(row["score"])
    for family, billions, percent in scores:
        if percent == "25":
            lead = scores[family, billions, "25"] - scores[family, billions, "0"]
            print(f"paper, {family}: {lead:+.2f} at {1e9 * billions / parameters:.0f} tokens per block parameter")


def our_leads():
    """Print the same for our width 128, on SciFact."""
    parameters = block_parameters(shape("config/openstax.py", 4096))
    for ending, steps in (("10.2M", 5_000), ("41M", 20_000)):
        chosen = studies.choose(studies.models(studies.table(CAUSE), f"(.+)-{ending}"))
        scores = studies.resample("cause", chosen)
        both = [studies.means_of(scores, recipe, ("scifact",)) for recipe in ("clm25-mlm", "mlm")]
        lead = studies.as_text(studies.compare(studies.differences(*both)))
        print(f"ours, SciFact: {lead} at {2048 * steps / parameters:.0f} tokens per block parameter ({parameters:,})")


def clm_flops():
    """Print how many more FLOPs 25 % CLM followed by MLM takes than pure MLM, by train.py's count."""
    for width, arguments in WIDTHS.items():
        model = without_weights(shape(f"config/openstax.py {arguments}", 4096))
        clm, mlm = (step_flops(model, {objective: [0]}, "none") for objective in (CLM(), MLM()))
        print(f"width {width}: 25 % CLM takes {25 * (clm / mlm - 1):.1f} % more FLOPs")


def deviations():
    """Print the standard deviation over fine-tuning rates, with and without the highest rate: means of five seeds."""
    tests = defaultdict(list)
    for row in studies.table(CAUSE):
        if row["finetune_seed"] == "1" and row["rate"] in RATES and row["model"] in ("mlm-10.2M", "clm25-mlm-10.2M"):
            tests[row["task"], row["model"], row["seed"]].append((float(row["rate"]), float(row["test"])))
    for task in studies.TASKS:
        for model in ("clm25-mlm-10.2M", "mlm-10.2M"):
            found = [sorted(each) for (t, m, _), each in tests.items() if (t, m) == (task, model)]
            four, three = (mean(stdev(test for _, test in each[:n]) for each in found) for n in (4, 3))
            print(f"{model}, {task}: deviation {four:.1f} over 5e-4 to 4e-3, {three:.1f} without 4e-3")


def steps_to_a_loss(step=4700):
    """Print how many times earlier each recipe reaches the loss that pure MLM has at `step`."""
    losses = defaultdict(dict)
    for row in studies.table(CAUSE, "losses.csv"):
        losses[row["model"], row["seed"]][int(row["step"])] = float(row["mlm_loss"])
    for model in ("mlm-80-10-10-41M", "clm25-mlm-10.2M", "mlm-80-0-20-10.2M", "mntp-10.2M"):
        ratios = []
        for seed in ("9", "10", "11", "12", "13"):
            pure = losses["mlm-41M", seed] | losses["mlm-10.2M", seed]  # the short run's, if both have the step
            first = min(s for s, loss in losses[model, seed].items() if loss <= pure[step])
            ratios.append(step / first)
        print(f"{model}: {mean(ratios):.1f} times as early ({min(ratios):.1f} to {max(ratios):.1f})")


def small_study():
    """Print pure CLM minus pure MLM on tagging, and MLM continued from CLM minus MLM continued from MLM."""
    for row in studies.table("early/small.zip", "comparisons.csv"):
        continued = row["question"] == "2,550 steps added"
        if continued or (row["target"], row["model_a"], row["model_b"]) == ("conll2003", "CLM only", "MLM only"):
            difference, high, p = float(row["difference"]), float(row["high_95"]), float(row["p_holm"])
            result = f"{difference:.1f} ± {high - difference:.1f}, corrected p {p:.2g}"
            print(f"{row['model_a']} − {row['model_b']}, {row['question']}, {row['target']}: {result}")


if __name__ == "__main__":
    for part in (papers_leads, our_leads, clm_flops, deviations, steps_to_a_loss, small_study):
        part()
