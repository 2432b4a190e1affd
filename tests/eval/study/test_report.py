"""Reports on made-up results whose tables are known by hand or by construction."""

import csv
import itertools
import json
import shutil
import sys
from collections import defaultdict
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers import ROOT

import configurator
from errors import DataError
from eval.study import figures, report, stats
from eval.study.compare import Scores, compare
from eval.study.plan import Plan
from eval.study.results import read_results
from eval.tasks import metrics
from eval.tasks.registry import GLUE

METRICS = {
    "sc": ("accuracy", "accuracy"),
    "tc": ("entity_f1", "sentence_macro_f1"),
    "ir": ("ndcg@10", "ndcg@10_judged"),
}
RESAMPLES = 200


def make_result(
    root, name="mlm", task="sst2", family="sc", lr=1e-4, seed=1, test=50, validation=50.0, n=100, settings=(), **facts
):
    """Write one result as finetune.py does.

    test: how many of the n test instances are right, or whether each is (n,). validation: percent. Both may be of each
    metric, {name: value}. main: {"field": names of metrics, "paper": names}. facts: of the checkpoint; its pretraining
    seed is pretraining=...
    """
    main = facts.pop("main", {"field": [METRICS[family][0]], "paper": [METRICS[family][1]]})
    names = main["field"] + main["paper"]
    test, validation = (its if isinstance(its, dict) else dict.fromkeys(names, its) for its in (test, validation))
    right = {metric: np.arange(n) < its if np.ndim(its) == 0 else its for metric, its in test.items()}
    arrays = {metric: metrics.one_class(its).astype(np.float32) for metric, its in right.items()}
    checkpoint = {"name": name, "step": 2000, "max_steps": 2000, "clm_steps": 0, "mask_ratio": 0.4, "init_from": ""}
    checkpoint |= {"seed": facts.pop("pretraining", 1), "untrained": False, "peak_lr": 1e-3, "recipe": "0" * 8}
    test = {metric: metrics.score(array) for metric, array in arrays.items()}
    result = {"task": task, "family": family, "lr": lr, "seed": seed, "main": main, "versions": {"torch": "2.13"}}
    result |= {"test_set": f"of {task}", "examples": {"train": 1000, "validation": 50, "test": n}}
    result["metrics"] = {"validation": validation, "test": test}
    result["checkpoint"] = checkpoint | {"parameters": 1_740_000, "model": {"n_layer": 4}, **facts}
    result["baselines"] = {"majority": dict.fromkeys(main["field"][:1], 40.0)}
    result["settings"] = {"task": task, "lr": lr, "seed": seed, "batch": 32, **dict(settings)}
    folder = Path(root, name, task, f"lr-{lr:g}_seed-{seed}")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    np.savez(folder / "instances.npz", **arrays)
    return folder


@pytest.fixture(autouse=True)
def no_figures(monkeypatch, request):
    """As if matplotlib were not installed, except in the test of the figures: drawing takes most of the time."""
    if "figures" not in request.node.name:
        monkeypatch.setitem(sys.modules, "matplotlib", None)


def edit(folder, change):
    """Change the result.json of a folder."""
    result = json.loads((folder / "result.json").read_text())
    change(result)
    (folder / "result.json").write_text(json.dumps(result))


def read(folder, name):
    with open(Path(folder, name), newline="") as file:
        return list(csv.DictReader(file))


def write(root, **settings):
    """Return the text of the report on a folder."""
    report.write_folder(root, root, resamples=RESAMPLES, **settings)
    return (root / "report.md").read_text()


def scores(root, metric="field"):
    """Return {(model, target): the cell of the table}."""
    found = Scores(read_results(root), metric)
    return {(variant.label, target): str(score or "-") for (variant, target), score in found.cells.items()}


def comparisons(root, metric="field"):
    found = compare(Scores(read_results(root), metric, RESAMPLES))
    return {(c.target, c.a.label, c.b.label): c for c in found}


def cells(text):
    """Return the rows of all tables."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


# ----------------------------------------------------------------------------
# Scores


def test_scores_by_hand(tmp_path):
    for seed, right in enumerate((59, 60, 61), 1):
        make_result(tmp_path, seed=seed, lr=1e-4, test=right, validation=70)
        make_result(tmp_path, seed=seed, lr=2e-4, test=80, validation=70)  # of equals the lowest is chosen
        make_result(tmp_path, seed=seed, lr=5e-4, test=90, validation=69)  # best on test: must not be chosen
    text = write(tmp_path)
    assert ["mlm", "60.0 ± 2.5"] in cells(text) and ["*majority*", "40.0"] in cells(text)  # 4.303 * 1 / sqrt(3)
    assert ["sst2", "mlm", "0.0001", "1.00", "3 of 3"] in cells(text)
    runs = read(tmp_path, "results.csv")
    assert {run["status"] for run in runs} == {"done"}
    assert {run["field_score"] for run in runs if run["lr"] == "0.0001"} == {"60.0 ± 2.5"}
    assert {run["paper_score"] for run in runs if run["lr"] != "0.0001"} == {""}
    assert sorted(float(run["field_test"]) for run in runs) == [59, 60, 61, 80, 80, 80, 90, 90, 90]


def test_each_metric_chooses_its_own_learning_rate_and_has_a_column(tmp_path):
    for lr, right, field, paper in ((1e-4, 60, 80, 10), (2e-4, 50, 70, 90)):
        for task in ("conll", "uner"):
            validation = {"entity_f1": field, "sentence_macro_f1": paper}
            make_result(tmp_path, task=task, family="tc", lr=lr, test=right, validation=validation)
        make_result(tmp_path, task="nq", family="ir", lr=lr, main={"field": [], "paper": ["ndcg@10_judged"]})
    for metric, lr, of_conll in (("field", "0.0001", "60.0 (one seed)"), ("paper", "0.0002", "50.0 (one seed)")):
        text = write(tmp_path, metric=metric)
        assert metric in text.split("\n")[0]
        header, row = cells(text)[3], cells(text)[5]
        expected = {f"{task} (entity_f1)": "60.0" for task in ("tc mean", "conll", "uner")}
        expected |= {f"{task} (sentence_macro_f1)": "50.0" for task in ("tc mean", "conll", "uner")}
        expected["nq (ndcg@10_judged)"] = "50.0"  # among judged documents only, the field has no other metric
        assert dict(zip(header[1:], row[1:])) == {name: f"{its} (one seed)" for name, its in expected.items()}
        assert ["conll", "mlm", lr, "-", "1 of 1"] in cells(text)
        runs = [run for run in read(tmp_path, "results.csv") if run["task"] == "conll" and run[f"{metric}_score"]]
        assert [(run["lr"], run[f"{metric}_score"]) for run in runs] == [(lr, of_conll)]


def test_the_interval_of_a_family_is_computed_seed_by_seed(tmp_path):
    for seed, (one, other) in enumerate(((50, 70), (60, 60), (70, 50)), 1):
        make_result(tmp_path, seed=seed, task="sst2", test=one)
        make_result(tmp_path, seed=seed, task="mnli", test=other)
    found = scores(tmp_path)
    assert found["mlm", "sst2"] == found["mlm", "mnli"] == "60.0 ± 24.8" and found["mlm", "sc mean"] == "60.0 ± 0.0"


def test_a_test_set_under_two_names_counts_once_in_means_and_comparisons(tmp_path):
    points = itertools.product((("sst2", 50), ("mine", 70), ("mnli", 60)), (0, 2000), (1, 2))
    for (task, right), steps, seed in points:
        folder = make_result(tmp_path, f"clm{steps}", task, test=right, seed=seed, clm_steps=steps)
        edit(folder, lambda r: r.update(test_set=r["test_set"].replace("mine", "sst2")))
    found, text = scores(tmp_path), write(tmp_path)
    assert found["MLM only", "mine"] == "70.0 ± 0.0" and found["MLM only", "sc mean"] == "65.0 ± 0.0"  # mine is first
    assert "Careful: sst2 has the same test set as mine" in text and "Corrected together: 3 comparisons" in text
    assert {c["target"] for c in read(tmp_path, "comparisons.csv")} == {"sc mean", "mine", "mnli"}


def test_the_mean_of_a_family_has_one_scale(tmp_path):
    for task, metric in (("cola", "matthews"), ("stsb", "pearson"), ("sickr", "pearson"), ("sst2", "accuracy")):
        main = {"field": [metric], "paper": ["accuracy"] if task == "cola" else [metric]}
        edit(make_result(tmp_path, task=task, main=main), lambda r: r["metrics"]["test"].update({metric: -0.02}))
    found = scores(tmp_path)
    assert ("mlm", "sc mean") not in found and found["mlm", "cola"] == "0.0 (one seed)"  # and not -0.0
    make_result(tmp_path, task="mnli", main={"field": ["accuracy", "f1"], "paper": ["accuracy"]})
    assert scores(tmp_path)["mlm", "sc mean"] == "25.0 (one seed)"  # sst2 and mnli


def test_missing_and_failed_runs_are_shown_as_such(tmp_path):
    for seed in (1, 2, 3):
        for task in ("sst2", "mnli"):
            make_result(tmp_path, "mlm", task, seed=seed, test=50 + seed)
        if seed != 2:
            make_result(tmp_path, "clm", "sst2", seed=seed, clm_steps=2000, test=50 + seed)
    for job, end in (
        ("clm/sst2/lr-0.0001_seed-2", ""),
        ("clm/sst2/lr-0.0001_seed-4", "\nCompile with `TORCH_USE_CUDA_DSA`\n"),
    ):
        (tmp_path / job).mkdir()
        text = f"50 %\nTraceback (most recent call last):\n  File ...\nRuntimeError: out of memory{end}\n"
        (tmp_path / job / "error.txt").write_text(text)
    (tmp_path / "clm/sst2/lr-0.0001_seed-1/error.txt").write_text("of an earlier attempt")
    found = scores(tmp_path)
    assert found["MLM only", "sc mean"] == "52.0 ± 2.5" and found["CLM only", "sst2"] == "52.0 ± 12.7 (2 of 3 runs)"
    assert found["CLM only", "mnli"] == found["CLM only", "sc mean"] == "-"
    text = write(tmp_path)
    assert "\n- `clm/sst2/lr-0.0001_seed-2` and 1 more: RuntimeError: out of memory\n" in text and "earlier" not in text
    assert ["sst2", "CLM only", "0.0001", "1.41", "2 of 3"] in cells(text)
    errors = [run["error"] for run in read(tmp_path, "results.csv") if run["status"] == "failed"]
    assert errors == ["RuntimeError: out of memory"] * 2


def test_a_learning_rate_that_lost_a_seed_is_chosen_only_if_all_have(tmp_path):
    for seed in (1, 2, 3):
        make_result(tmp_path, seed=seed, lr=1e-4, test=50, validation=60)
        if seed < 3:
            make_result(tmp_path, seed=seed, lr=2e-4, test=70, validation=90)
    assert scores(tmp_path)["mlm", "sst2"] == "50.0 ± 0.0"
    (tmp_path / "mlm/sst2/lr-0.0001_seed-1/result.json").unlink()
    assert scores(tmp_path)["mlm", "sst2"] == "70.0 ± 0.0 (2 of 3 runs)"


def test_several_pretraining_seeds_are_the_unit(tmp_path):
    for pretraining, mlm, clm in ((1, 48, 60), (2, 50, 61), (3, 52, 65)):
        for seed, task in itertools.product((1, 2), ("sst2", "mnli")):
            for name, level, steps in (("mlm", mlm, 0), ("clm", clm, 2000)):
                facts = {"pretraining": pretraining, "clm_steps": steps, "init_from": f"out/seed{pretraining}/a.pt"}
                right = 100 * level + 1000 * seed
                make_result(tmp_path, f"{name}-seed-{pretraining}", task, seed=seed, test=right, n=10**4, **facts)
    table, found = scores(tmp_path), comparisons(tmp_path)
    for target in ("sst2", "mnli", "sc mean"):  # tasks share what pretraining did: their mean is no more certain
        assert table["MLM", target] == "65.0 ± 5.0"  # a standard deviation of 2
        assert table["CLM", target] == "77.0 ± 6.6"  # of 2.65
        c = found[target, "MLM", "CLM"]
        assert (c.units, c.unit) == (3, "pretraining seed") and c.estimate == pytest.approx(-12)  # of 12, 11, 13
        assert 4.3026 / 3**0.5 < c.half < 4.3026 / 3**0.5 + 0.5
    assert ["MLM", "mlm-seed-1, mlm-seed-2, mlm-seed-3", "1, 2, 3", "1,740,000"] in cells(write(tmp_path))


def test_each_set_of_a_retrieval_task_is_a_task(tmp_path):
    nq, mldr = names = ["nq/ndcg@10_judged", "mldr/ndcg@10_judged"]
    for seed, (name, clm, gain) in itertools.product((1, 2, 3), (("mlm", 0, 1), ("clm", 2000, 2))):
        for lr, validation, right in ((1e-4, (70, 60), (50, 10)), (2e-4, (60, 80), (90, 30))):
            validation, right = dict(zip(names, validation)), dict(zip(names, np.add(right, gain * seed)))
            main = {"field": [], "paper": names}
            make_result(tmp_path, name, "msmarco", "ir", lr, seed, right, validation, main=main, clm_steps=clm)
    found, text = scores(tmp_path), write(tmp_path)
    assert [found["MLM only", task] for task in ("msmarco/nq", "msmarco/mldr")] == ["52.0 ± 2.5", "32.0 ± 2.5"]
    assert found["MLM only", "ir mean"] == "42.0 ± 2.5"
    header = ["model", *(f"{task} (ndcg@10_judged)" for task in ("ir mean", "msmarco/mldr", "msmarco/nq"))]
    assert header in cells(text) and "12 results, 0 failed" in text
    c = comparisons(tmp_path)["ir mean", "MLM only", "CLM only"]  # -1, -2, -3 points: the sets share what training did
    assert c.estimate == pytest.approx(-2) and 4.3026 / 3**0.5 < c.half < 4.3026 / 3**0.5 + 0.5


def test_the_average_of_glue(tmp_path):
    main = {task: {"field": ["accuracy"], "paper": ["accuracy"]} for task in GLUE}
    main["cola"]["field"], main["mnli"]["field"] = ["matthews"], ["accuracy", "mismatched/accuracy"]
    main["stsb"], main["qqp"]["field"] = dict.fromkeys(("field", "paper"), ["pearson", "spearman"]), ["accuracy", "f1"]
    main["mrpc"] = main["qqp"]
    rng, best = np.random.default_rng(0), {"mlm": [], "clm": []}  # {model: [scores (seeds,) of each task]}
    for name, task in itertools.product(best, GLUE):
        names = [*dict.fromkeys(main[task]["field"] + main[task]["paper"])]
        of_field = [names.index(metric) for metric in main[task]["field"]]
        in_validation = [i for i in of_field if "mismatched" not in names[i]]  # which has no validation set
        right, validation = rng.integers(30, 90, (2, 2, 3, len(names)))  # (learning rates, seeds, metrics) each
        for i, lr in enumerate((1e-4, 2e-4)):
            for j in range(3):
                values = {metric: float(x) for metric, x in zip(names, validation[i, j]) if "mismatched" not in metric}
                its, facts = dict(zip(names, right[i, j])), {"main": main[task], "clm_steps": 2000 * (name == "clm")}
                make_result(tmp_path, name, task, "sc", lr, j, its, values, **facts)
        chosen = validation[:, :, in_validation].mean((1, 2)).argmax()
        best[name].append(right[chosen][:, of_field].mean(1))
    text, found = cells(write(tmp_path)), scores(tmp_path)
    for name, label in (("mlm", "MLM only"), ("clm", "CLM only")):
        medians = np.median(best[name], 1)
        assert [label, *(f"{x:.1f}" for x in [*medians, medians.mean()])] in text
        seeds = np.mean(best[name], 0)
        assert found[label, "GLUE average"] == f"{seeds.mean():.1f} ± {4.3026 * seeds.std(ddof=1) / 3**0.5:.1f}"
        six = np.delete(best[name], [GLUE.index("cola"), GLUE.index("stsb")], 0).mean()  # without correlations
        assert found[label, "sc mean"].startswith(f"{six:.1f} ± ")
    assert ("MLM only", "GLUE average") not in scores(tmp_path, "paper")
    assert ("GLUE average", "MLM only", "CLM only") in comparisons(tmp_path)
    shutil.rmtree(tmp_path / "clm")
    shutil.rmtree(tmp_path / "mlm/rte")
    assert ("mlm", "GLUE average") not in scores(tmp_path)


# ----------------------------------------------------------------------------
# Variants


def test_variants_are_labeled_by_what_differs(tmp_path):
    make_result(tmp_path, "a")
    make_result(tmp_path, "b", clm_steps=500)
    make_result(tmp_path, "c", clm_steps=500, max_steps=4000)
    make_result(tmp_path, "d", mask_ratio=0.2)
    make_result(tmp_path, "e", untrained=True, step=0)
    make_result(tmp_path, "f", step=0, max_steps=0, parameters=40_000)
    make_result(tmp_path, "g", init_from="out/x/ckpt-9.pt")
    make_result(tmp_path, "h", model={"n_layer": 5})  # differs from a in what has no words
    assert {label for label, _ in scores(tmp_path)} == {
        "MLM only, mask 40 %, 2,000 steps, 1.7M (a)",
        "25 % CLM, mask 40 %, 2,000 steps, 1.7M",
        "25 % CLM, mask 40 %, step 2,000 of 4,000, 1.7M",
        "MLM only, mask 20 %, 2,000 steps, 1.7M",
        "randomly initialized, 1.7M",
        "f, 40K",
        "MLM, mask 40 %, 2,000 steps after x, 1.7M",
        "MLM only, mask 40 %, 2,000 steps, 1.7M (h)",
    }


def phase(name, steps, clm_steps=0.0, ratios=(0.4, 0.4), predict_from="mask"):
    return dict(phase=name, steps=steps, clm_steps=clm_steps, mask_ratio=[*ratios], predict_from=predict_from)


CLM_500, MLM_1500 = phase("clm", 500, 500.0, (0.0, 0.0)), phase("mlm", 1500)
SCHEDULES = {  # label: phases of 2,000 steps
    "MLM only, mask 40 %": [phase("mlm", 2000)],
    "25 % CLM, mask 40 %": [CLM_500, MLM_1500],
    "CLM only": [phase("clm", 2000, 2000.0, (0.0, 0.0))],
    "mixed, 50 % CLM, mask 40 %": [phase("mixed", 2000, 1000.0)],
    "mixed, 25 % CLM, mask 40 %": [phase("mixed", 2000, 500.0)],
    "MLM only, mask 40 to 15 %": [phase("mlm", 2000, 0.0, (0.4, 0.15))],
    "25 % CLM, predicted from the position before, mask 40 %": [CLM_500, MLM_1500 | {"predict_from": "before"}],
    "MLM (40 % masked) for 1,500 steps, then CLM for 500 steps": [MLM_1500, CLM_500],
    "CLM for 500 steps, then CLM in 50 % of the windows, MLM (40 % masked) in the others for 1,500 steps": [
        CLM_500,
        phase("mixed", 1500, 750.0),
    ],
    "CLM and MLM in 8 phases, 1,000 of 2,000 steps CLM": [phase("clm", 250, 250.0), phase("mlm", 250)] * 4,
}


def test_the_record_of_phases_makes_the_label_and_only_clm_followed_by_mlm_is_on_its_line(tmp_path):
    for i, phases in enumerate(SCHEDULES.values()):
        clm = sum(its["clm_steps"] for its in phases)
        make_result(tmp_path, f"model-{i}", phases=phases, clm_steps=clm)
    make_result(tmp_path, "older", seed=2, clm_steps=500)  # without a record
    found = Scores(read_results(tmp_path), "field")
    labels = {variant.label for variant in found.results.variants}
    assert labels == set(SCHEDULES)
    (line,) = figures.lines_of(found, figures.CLM_FRACTION).values()
    assert [(x, len(variant.runs)) for x, variant in line] == [(0, 1), (25, 2), (100, 1)]
    for axis in (figures.STEPS, figures.MASK_RATIO, figures.flops_axis(defaultdict(float))):
        assert figures.lines_of(found, axis) == {}


def test_random_weights_of_two_sizes_share_a_section(tmp_path):
    for (name, facts), parameters in itertools.product((("a", {}), ("r", {"untrained": True})), (10**6, 3 * 10**6)):
        for seed in (1, 2):
            make_result(tmp_path, f"{name}-{parameters}", seed=seed, parameters=parameters, **facts)
    _, section = write(tmp_path).split("## Which tasks are sensitive to pretraining?")
    rows = cells(section.partition("\n## ")[0])
    assert [row[0] for row in rows if row[-1] == "2 fine-tuning seeds"] == ["MLM only, 1.0M", "MLM only, 3.0M"]


def test_variants_go_by_name_if_no_words_tell_them_apart(tmp_path):
    for name, recipe in (("books", "1"), ("web", "2")):
        for pretraining in (1, 2):
            make_result(tmp_path / "own", f"{name}-seed-{pretraining}", pretraining=pretraining, recipe=recipe)
        make_result(tmp_path / "hub", name, step=0, max_steps=0, revision=f"8949b9{recipe}0ec900")
    for folder, seeds in (("own", [1, 2]), ("hub", [1])):
        variants = read_results(tmp_path / folder).variants
        assert [(v.label, v.seeds) for v in variants] == [("books", seeds), ("web", seeds)]
    assert ["books", "books@8949b91", "-", "1,740,000"] in cells(write(tmp_path / "hub"))
    make_result(tmp_path / "hub/newer", "web", step=0, max_steps=0, revision="9")
    labels = [v.label for v in read_results(tmp_path / "hub").variants]
    assert labels == ["books", "web (web@8949b92)", "web (web@9)"]


# ----------------------------------------------------------------------------
# Comparisons


def make_variants(root, gains, seeds=(1, 2, 3), tasks=("sst2",), n=300, noise=0.05, rng_seed=0):
    """Write variants {name: (gain in probit units, facts)} that share the difficulty of instances; seeds have noise."""
    rng = np.random.default_rng(rng_seed)
    for task in tasks:
        difficulty = rng.normal(size=n)
        for name, (gain, facts) in gains.items():
            for seed in seeds:
                z = gain + difficulty + noise * rng.normal() + 0.3 * rng.normal(size=n)
                make_result(root, name, task, seed=seed, test=z > 0, n=n, **facts)


def test_a_clear_difference_is_found_and_none_is_not(tmp_path):
    gains = {"mlm": (0, {}), "split": (1, {"clm_steps": 500}), "clm": (0, {"clm_steps": 2000})}
    make_variants(tmp_path, gains, range(1, 6), ("sst2", "mnli"), rng_seed=1)
    found = comparisons(tmp_path)
    mean, one, other = (found[target, "MLM only", "25 % CLM"].estimate for target in ("sc mean", "sst2", "mnli"))
    assert mean == pytest.approx((one + other) / 2) and mean < -10
    write(tmp_path, metric="field")
    rows = read(tmp_path, "comparisons.csv")
    assert len(rows) == 9  # three pairs on two tasks and their mean
    for row in rows:
        assert row["better"] == ("25 % CLM" if "25 % CLM" in (row["model_a"], row["model_b"]) else "")
        assert float(row["low_95"]) < float(row["difference"]) < float(row["high_95"])
        c = found[row["target"], row["model_a"], row["model_b"]]
        assert [float(row[name]) for name in ("difference", "p")] == pytest.approx([c.estimate, c.p], rel=1e-4)
    corrected = stats.holm([float(row["p"]) for row in rows])
    assert [float(row["p_holm"]) for row in rows] == pytest.approx(corrected.tolist(), rel=1e-4)


def test_the_interval_counts_the_sample_of_test_instances(tmp_path):
    """Seeds tie, so all doubt is in the instances: that of the answers that differ."""
    n, right = 400, np.arange(400) < 200
    for seed in (1, 2):
        make_result(tmp_path, "mlm", seed=seed, test=right, n=n)
        make_result(tmp_path, "clm", seed=seed, test=right | (np.arange(n) >= 384), n=n, clm_steps=2000)
    c = comparisons(tmp_path)["sst2", "MLM only", "CLM only"]
    assert c.estimate == pytest.approx(-4) and c.half == pytest.approx(1.96 * 100 * (0.04 * 0.96 / n) ** 0.5, rel=0.15)


def test_two_single_pretrainings_pair_by_fine_tuning_seed(tmp_path):
    for seed in (1, 2, 3):
        make_result(tmp_path, "mlm", seed=seed, test=50 + seed, pretraining=1)
        make_result(tmp_path, "clm", seed=seed + 1, test=60 + seed, pretraining=7, clm_steps=2000)
    c = comparisons(tmp_path)["sst2", "MLM only", "CLM only"]
    assert (c.units, c.unit) == (2, "fine-tuning seed") and c.estimate == pytest.approx(-9)  # of seeds 2 and 3 alone


def test_pairs_that_cannot_be_compared_say_so(tmp_path):
    for objective, seed, pretraining in itertools.product((0, 1), (1, 2), (1, 2)):
        name, steps = f"{objective}-{pretraining}", 2000 * objective
        make_result(tmp_path, name, seed=seed, pretraining=pretraining + 2 * objective, clm_steps=steps)
    row = ["sst2", "MLM only", "CLM only", "-", "-", "no pretraining seed in common", ""]
    assert row in cells(write(tmp_path))


# ----------------------------------------------------------------------------
# Classes


def put_predictions(folder, gold, predicted):
    lines = [json.dumps({"id": i, "gold": g, "predicted": p}) for i, (g, p) in enumerate(zip(gold, predicted))]
    (folder / "predictions.jsonl").write_text("\n".join(lines) + "\n")


def test_the_classes_of_texts_by_hand_and_in_figures(tmp_path):
    gold = ["a", "a", "b", "c"]
    for name, steps, answers in (("mlm", 0, ("aabb", "abbb")), ("clm", 2000, ("bbbb", "bbbb"))):
        for seed, predicted in enumerate(answers, 1):
            folder = make_result(tmp_path, name, seed=seed, n=4, test=3 - steps // 1000, clm_steps=steps)
            put_predictions(folder, gold, predicted)
    text = write(tmp_path)
    best = [["a", "4", "100.0", "75.0", "85.7", "3", "1", "0"], ["b", "2", "40.0", "100.0", "57.1", "0", "2", "0"]]
    best += [["c", "2", "0.0", "0.0", "0.0", "0", "2", "0"]]
    f1 = [["MLM only", "85.7", "57.1", "0.0"], ["CLM only", "0.0", "40.0", "0.0"]]
    assert [row for row in cells(text) if row in best + f1] == f1 + best
    assert find_spec("matplotlib") is None or "](classes-sst2.png)" in text
    (folder / "predictions.jsonl").unlink()  # as in older results
    assert f1[1] not in (rows := cells(write(tmp_path))) and best[0] in rows
    put_predictions(folder, gold, "bbb")
    with pytest.raises(DataError, match="seed-2/predictions.jsonl: 3 predictions, but result.json counts 4"):
        write(tmp_path)
    put_predictions(folder, [1.5, 2, 3, 4], [1, 2, 3, 4])  # numbers are no classes
    assert "Classes of" not in write(tmp_path)
    many = "abcdefghijklmnopqrstu"
    put_predictions(make_result(tmp_path, task="many", n=21), many, many)
    assert "Classes of" not in write(tmp_path)


def test_the_types_of_entities_by_hand(tmp_path):
    folder = make_result(tmp_path, task="ner", family="tc", n=2)
    gold, predicted = [["B-X", "I-X", "O"], ["B-Y", "O", "B-X"]], [["B-X", "I-X", "B-Y"], ["B-Y", "O", "B-Z"]]
    put_predictions(folder, gold, predicted)
    rows = [["X", "2", "100.0", "50.0", "66.7"], ["Y", "1", "50.0", "100.0", "66.7"], ["Z", "0", "0.0", "0.0", "0.0"]]
    assert [row for row in cells(write(tmp_path)) if row[0] in "XYZ"] == rows


# ----------------------------------------------------------------------------
# Bad files


def test_damaged_and_foreign_results_are_named(tmp_path):
    folders = [make_result(tmp_path, seed=seed) for seed in (1, 2, 3, 4, 5)]
    (folders[0] / "result.json").write_text('{"task": "ss')
    edit(folders[1], lambda r: r.pop("main"))
    edit(folders[2], lambda r: r["metrics"]["test"].update(accuracy=float("nan")))
    edit(folders[3], lambda r: r.update(family="cs"))
    with pytest.raises(DataError, match=r"(?s)lacks 'main'.*finite.*'cs' is none of sc, tc, qa, ir") as error:
        read_results(tmp_path)
    assert [str(folder) in str(error.value) for folder in folders] == [True] * 4 + [False]


def test_different_test_sets_are_not_compared(tmp_path):
    make_result(tmp_path, "mlm", seed=1)
    edit(make_result(tmp_path, "mlm", seed=2), lambda r: r.update(test_set="12345678"))
    with pytest.raises(DataError, match="sst2: mlm/.*seed-1 and mlm/.*seed-2 have different test sets"):
        read_results(tmp_path)


DAMAGE = {
    "test set": lambda path, right: np.savez(path, accuracy=right[:90]),
    "not the accuracy of 50.0 in result.json": lambda path, right: np.savez(path, accuracy=np.ones_like(right)),
    "accuracy": lambda path, right: np.savez(path, f1=right),
    "make this run again": lambda path, right: path.write_bytes(path.read_bytes()[:200]),
    "No such file": lambda path, right: path.unlink(),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damaged_instances_are_named(tmp_path, message):
    for name, seed in itertools.product(("mlm", "clm"), (1, 2)):
        path = make_result(tmp_path, name, seed=seed, clm_steps=2000 * (name == "clm")) / "instances.npz"
    DAMAGE[message](path, np.load(path)["accuracy"])
    with pytest.raises(DataError, match=f"(?s){path}.*{message}"):
        write(tmp_path)


def test_settings_that_differ_and_runs_that_are_there_twice_are_named(tmp_path):
    make_result(tmp_path / "a", seed=1, settings={"batch": 32, "out_dir": "x"})
    make_result(tmp_path / "b", seed=2, settings={"batch": 16, "out_dir": "y"})
    text = write(tmp_path)
    assert "the runs of sst2 differ in `batch`: 16, 32" in text and "out_dir" not in text
    make_result(tmp_path / "b", seed=1, settings={"causal": True})
    with pytest.raises(DataError, match="a/mlm/sst2/lr-0.0001_seed-1 and b/mlm/sst2/lr-0.0001_seed-1 are the same"):
        read_results(tmp_path)


# ----------------------------------------------------------------------------
# The command and the figures


def test_the_command(tmp_path, capsys):
    results, written = tmp_path / "results", tmp_path / "out"
    make_result(results, "mlm")

    def main(*args):
        try:
            report.main([*map(str, args)])
        except (SystemExit, DataError) as stop:
            return stop.args[0], capsys.readouterr()
        return 0, capsys.readouterr()

    code, text = main(results, f"--out={written}", "--resamples=100")
    assert code == 0 and "50.0 (one seed)" in text.out and text.out.rstrip().endswith("out/report.md")
    assert str(tmp_path) not in (written / "report.md").read_text() and not (results / "report.md").exists()
    code, text = main(results, "--resamples=5", "--metric=best", "--resample=500")
    assert code == 2 and all(name in text.err for name in ("resamples=5", "metric=best", "unknown setting"))
    code, text = main("--help")
    assert code == 0 and "RESULTS_DIR" in text.out and "resamples = 2000" in text.out
    assert "usage: python -m eval.study report RESULTS_DIR" in main(tmp_path / "absent")[0]
    written.rename(tmp_path / "empty")
    assert "no result.json" in main(tmp_path / "empty")[0]


def test_figures_are_drawn_if_they_have_more_than_one_x(tmp_path):
    pytest.importorskip("matplotlib")

    def drawn():
        text, paths = write(tmp_path), sorted(tmp_path.glob("*.png"))
        assert all(path.stat().st_size > 5000 and f"]({path.name})" in text for path in paths)
        return [path.stem for path in paths]

    make_result(tmp_path, "mlm")
    make_result(tmp_path, "random", untrained=True, step=0, clm_steps=0)
    assert drawn() == []
    make_result(tmp_path, "clm", clm_steps=2000)
    make_result(tmp_path, "half", step=1000)
    assert drawn() == ["clm_fraction", "steps"]
    make_result(tmp_path, "clm-2", clm_steps=2000, mask_ratio=0.2)  # CLM alone has no mask ratio
    assert drawn() == ["clm_fraction", "steps"]
    make_result(tmp_path, "mlm-2", mask_ratio=0.2)
    assert drawn() == ["clm_fraction", "mask_ratio", "steps"]


# ----------------------------------------------------------------------------
# The report of a study


def plan_of(folder, *args):
    """Return a plan of 0, 50 and 100 % CLM on one task, unless args say otherwise."""
    usual = ["--splits=((40, 0, 20, 40),)", "--finetune_lrs=1e-3", '--tasks=(("sst2", ""),)', f"--out_dir={folder}"]
    return Plan(configurator.load(ROOT / "eval/study/__main__.py", [*usual, *args]))


def fill(plan, right, models=None):
    """Write results: right(model, task, seed) of 400 test instances are right, None for no result."""
    for model, (task, _), seed in itertools.product(models or plan.models, plan.cfg.tasks, (1, 2, 3)):
        run, step = model.run, model.step or model.run.budget
        if (test := right(model, task, seed)) is not None:
            facts = {"step": step, "max_steps": run.budget, "clm_steps": min(run.clm, step), "mask_ratio": run.mask}
            facts |= {"untrained": model.random_weights, "pretraining": run.seed}
            facts["init_from"] = f"out/{run.base.name}/ckpt-40.pt" if run.base else ""
            facts["parameters"] = 1_740_000 if run.trunk == plan.size else 3_000_000
            root, family = Path(plan.cfg.out_dir, "results"), "tc" if task == "wnut17" else "sc"
            make_result(root, model.name, task, family, 1e-3, seed, test, n=400, **facts)


def write_study(plan):
    """Return the text of the report on a study, after a look at the answer that is printed."""
    printed = report.write_study(plan, RESAMPLES)
    text = Path(plan.cfg.out_dir, "report/report.md").read_text()
    assert printed.endswith("report/report.md") and printed.split("steps: ")[-1].split("\n")[0] in text
    return text


def write_made_up(folder, scores):
    """Return the report of a study in which 0, 50 and 100 % CLM and random weights got about `scores` of 400 right."""
    plan = plan_of(folder)

    def right(model, task, seed):
        about = scores[3 if model.random_weights else 2 * model.run.clm // model.run.budget]
        return about + np.roll((-1, 0, 2), plan.models.index(model))[seed - 1]

    fill(plan, right)
    return write_study(plan)


ANSWERS = {  # the scores of write_made_up, and what the report must say
    (300, 350, 290, 200): ["Clearly better than MLM alone on sst2, best first: **50 % CLM**. MLM alone scores 75.1"],
    (300, 302, 250, 200): ["The nearest is 50 % CLM (+0.5 ± ", "worse than MLM alone: CLM only."],
    (300, 260, 299, 200): ["Stay with MLM. No share", "(-0.2 ± ", "worse than MLM alone: 50 % CLM."],
    (212, 196, 194, 200): ["Stay with MLM."],  # one objective pays: it must count
    (300, 302, 297, 300): ["No answer: no task is shown to be sensitive to pretraining."],
}


@pytest.mark.parametrize("scores", ANSWERS)
def test_the_answer_follows_from_the_comparisons(tmp_path, scores):
    text = write_made_up(tmp_path, scores)
    assert [sentence for sentence in ANSWERS[scores] if sentence not in text] == []


@pytest.mark.parametrize("metric, best", [("field", "CLM only"), ("paper", "50 % CLM")])
def test_the_answer_is_by_the_metric_of_the_study(tmp_path, metric, best):
    plan = plan_of(tmp_path, f"--metrics={metric}", '--tasks=(("wnut17", ""),)')

    def right(model, task, seed):
        level, clm = 200 if model.random_weights else 300 + seed, 0 if model.random_weights else model.run.clm
        return {"entity_f1": level + 60 * (clm == 40), "sentence_macro_f1": level + 60 * (clm == 20)}

    fill(plan, right)
    assert f"on wnut17, best first: **{best}**" in write_study(plan)


def test_the_answer_claims_nothing_that_was_not_tested(tmp_path):
    text = write_made_up(tmp_path, (300, 350, 290, 200))
    assert "one pretraining seed is behind what is said of 50 % CLM, CLM only" in text and "3 fine-tuning seeds" in text
    for path in (tmp_path / "results").rglob("lr-0.001_seed-[23]"):
        shutil.rmtree(path)
    text = write_study(plan := plan_of(tmp_path))
    assert "No answer" in text and "nan" not in text
    shutil.rmtree(tmp_path / "results/random-demo")
    text = write_study(plan)
    assert "every task is included" in text and "No answer yet: MLM alone and another model need two seeds" in text
    (path,) = (tmp_path / "results/demo-clm-40-40").rglob("result.json")
    path.with_name("error.txt").write_text("out of memory\n")
    path.unlink()
    assert "out of memory" in write_study(plan)


def test_missing_shares_are_named_and_tasks_no_longer_asked_for_are_left_out(tmp_path):
    both = '--tasks=(("sst2", ""), ("mnli", ""))'

    def right(model, task, seed):
        if model.random_weights or (model.run.clm, task) == (20, "mnli"):
            return 200 + seed if model.random_weights else None
        return 300 + 80 * (model.run.clm == 20) + seed * (model.run.clm == 40)

    fill(plan_of(tmp_path, both), right)
    assert "Not compared yet, because results are missing: 50 % CLM." in write_study(plan_of(tmp_path, both))
    text = write_study(plan_of(tmp_path))
    assert "mnli" not in text and "on sst2, best first: **50 % CLM**" in text and "Not compared yet" not in text
    assert "- fine-tuning: 12 of 12 jobs have a result" in text
    shutil.rmtree(tmp_path / "results/random-demo/mnli")
    assert "on sst2, best first" in write_study(plan_of(tmp_path, both))


def test_shares_are_ranked_by_pairs_of_seeds(tmp_path):
    """The first pretraining seed is poor for all models; a share without other seeds is compared on that one alone."""
    plan = plan_of(tmp_path, "--seeds=1,2,3", "--repeated=0,40")

    def right(model, task, seed):
        level = 330 - 90 * (model.run.seed == 1) + 30 * (model.run.clm == 20)
        return 100 if model.random_weights else level + (seed + model.run.clm) % 2

    fill(plan, right)
    text = write_study(plan)
    assert "best first: **50 % CLM**" in text and "one pretraining seed is behind what is said of 50 % CLM." in text
    levels = {row[0]: row[1][:2] for row in cells(text) if len(row) == 2}
    assert (levels["MLM only"], levels["50 % CLM"]) == ("75", "67")


VARIANTS = '--variants=(("mixed 1:1", "--clm_windows=0.5"), ("falling", "--mask_ratio=0.4,0.1"))'


@pytest.mark.parametrize("mixed, falling, advice", [
    (380, 240, "Train mixed 1:1. Clearly better than MLM alone on sst2, best first: **mixed 1:1, 50 % CLM**."),
    (300, 240, "Start with CLM. Clearly better than MLM alone on sst2, best first: **50 % CLM**."),
])  # fmt: skip
def test_variants_are_compared_with_mlm_alone_by_their_names(tmp_path, mixed, falling, advice):
    plan = plan_of(tmp_path, VARIANTS, "--seeds=1,2,3", "--splits=((20, 0, 10), (40, 0, 20, 40))")
    rng, levels = np.random.default_rng(0), {"demo": 300, "mixed-1-1": mixed, "falling": falling}

    def right(model, task, seed):
        if model.random_weights:
            return 200 + seed
        return levels[model.run.size] + 40 * (model.run.clm in (10, 20)) + int(rng.integers(-1, 2))

    fill(plan, right)
    for run in plan.runs.values():
        run.folder.mkdir(parents=True)
        loss = 5 + run.seed / 10 + (run.size == "falling")
        line = {"step": run.budget, "val_clm_loss": loss, "val_mlm_loss": loss}
        (run.folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    text = write_study(plan)
    assert advice in text and "worse than MLM alone: falling." in text and "Not compared" not in text
    longest, shorter = text.split("### At ")[1:3]
    assert [row[0] for row in cells(longest)[2:]] == ["50 % CLM", "CLM only", "falling", "mixed 1:1"]
    assert [row[0] for row in cells(shorter.split("### Which")[0])[2:]] == ["50 % CLM"]
    assert ["falling", "3", "6.200 ± 0.248", "6.200 ± 0.248"] in cells(text)
    assert {row[0] for row in cells(text)} >= {"mixed 1:1, 40 steps", "falling, 40 steps", "MLM only, 40 steps"}
    for path in (tmp_path / "results").glob("demo-mixed*"):
        shutil.rmtree(path)
    assert "Not compared yet, because results are missing: mixed 1:1." in write_study(plan)


def test_figures_of_differences_are_of_the_longest_budget(tmp_path):
    pytest.importorskip("matplotlib")
    plan = plan_of(tmp_path, "--splits=((20, 0, 10), (40, 0, 20, 40))")
    fill(plan, lambda model, task, seed: 300 * (not model.random_weights) + model.run.clm + seed)
    longest, shorter = write_study(plan).split("### At ")[1:3]
    assert "](differences.png)" in longest and "](differences.png)" not in shorter
    assert (tmp_path / "report/differences.png").stat().st_size > 5000


def test_no_variant_is_better_and_one_has_another_shape(tmp_path):
    variants = '--variants=(("falling", "--mask_ratio=0.4,0.1"), ("wide", "--d_ff=512"))'
    plan = plan_of(tmp_path, variants, "--splits=((40, 0),)")
    fill(plan, lambda model, *_: 200 if model.random_weights else 300 + 2 * (model.run.size == "falling"))
    text = write_study(plan)
    assert "Stay with MLM. No other model is clearly better than **MLM alone** on sst2. The nearest is falling" in text
    assert "wide, 3.0M" in text and "Not compared" not in text


def test_the_whole_page(tmp_path, monkeypatch):
    """A study with all of its sections, also while results come in, without matplotlib; against tests' golden file."""
    monkeypatch.chdir(tmp_path)
    args = ["--splits=((20, 0, 10, 20), (40, 0, 20, 40))", "--seeds=1,2,3", "--continued=10", "--intermediate=8"]
    args += ["--mask_ratios=0.4,0.2", '--sizes=(("demo", ""), ("wide", "--d_ff=512"))']
    plan = plan_of("study", *args, '--tasks=(("sst2", ""), ("wnut17", ""))')
    text = write_study(plan)
    assert "No answer: no results yet." in text and f"0 of {len(plan.runs)} runs have ended" in text
    rng = np.random.default_rng(0)

    def right(model, task, seed):
        sensitive = not model.random_weights and task == "sst2"  # on wnut17 pretraining does not matter
        return 200 + (60 + 40 * (model.run.clm == 20) + int(rng.integers(-2, 3))) * sensitive

    for first in range(0, len(plan.models), 9):
        fill(plan, right, plan.models[first : first + 9])
        text = write_study(plan)
    for run in plan.runs.values():
        run.folder.mkdir(parents=True)
        line = {"phase": "mlm", "loss": 5 + run.clm / 100 + run.seed / 10}
        lines = [line | {"step": step} for step in range(run.start, run.budget + 1)]
        lines[-1] |= {"val_clm_loss": 6 - run.clm / 20, "val_mlm_loss": 5 + run.seed / 10}
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text, golden = write_study(plan), Path(__file__).with_name("golden_report.md")
    assert text == golden.read_text(), f"if the change is meant, copy {tmp_path}/study/report/report.md to {golden}"
    rows = read("study/report", "comparisons.csv")
    assert {row["question"] for row in rows} == {"40 steps", "20 steps", "10 steps added"}
    assert {row["target"] for row in rows if row["question"] == "40 steps"} == {"sst2"}
