"""eval/report.py, on made-up results whose tables are known by hand or by construction."""

import csv
import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from errors import DataError
from eval.study import figures, report, stats
from eval.study.results import Study

METRICS = {"sc": ("accuracy", "accuracy"), "tc": ("entity_f1", "sentence_macro_f1"), "qa": ("f1", "token_set_f1"),
           "ir": ("ndcg@10", "ndcg@10_judged")}  # fmt: skip


def make_result(root, name="mlm", task="sst2", family="sc", lr=1e-4, seed=1, test=50, validation=50.0, paper=None,
                pretraining=1, settings=(), n=100, **facts):  # fmt: skip
    """Writes one run as finetune.py does. test: how many of the n test instances are right, or whether each is
    (n,); validation: per cent; paper: the same two of the paper's metric, where it is not the field's; pretraining:
    its seed; facts: of the checkpoint."""

    def instances(right):
        right = np.arange(n) < right if np.ndim(right) == 0 else right
        return np.stack([right, np.ones(n)], -1)[:, None].astype(np.float32)  # (n, 1, 2)

    field_metric, paper_metric = METRICS[family]
    arrays = {field_metric: instances(test)}
    scores = {"validation": {field_metric: validation}, "test": {}}
    if field_metric != paper_metric:
        arrays[paper_metric] = instances(test if paper is None else paper[0])
        scores["validation"][paper_metric] = validation if paper is None else paper[1]
    scores["test"] = {metric: float(stats.ratio_score(array.sum(0))) for metric, array in arrays.items()}
    checkpoint = {"name": name, "path": f"out/{name}/ckpt-2000.pt", "step": 2000, "max_steps": 2000, "clm_steps": 0,
                  "mask_ratio": 0.4, "seed": pretraining, "init_from": "", "untrained": False, "peak_lr": 1e-3,
                  "recipe": "0" * 8, "parameters": 1_740_000, "model": {"n_layer": 4}, **facts}  # fmt: skip
    result = {"task": task, "family": family, "metrics": scores,
              "main": {"field": [field_metric], "paper": [paper_metric]},
              "baselines": {"majority": {field_metric: 40.0}}, "counts": {}, "steps": 1000, "lr": lr, "seed": seed,
              "examples": {"train": 1000, "validation": 50, "test": n}, "test_set": "0" * 8, "checkpoint": checkpoint,
              "settings": {"task": task, "lr": lr, "seed": seed, "batch": 32, **dict(settings)},
              "versions": {"torch": "2.13"}}  # fmt: skip
    folder = Path(root, name, task, f"lr-{lr:g}_seed-{seed}")
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result))
    np.savez(folder / "instances.npz", **arrays)
    return folder


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(report, "resamples", 200)


def read(folder, name):
    with open(Path(folder, name), newline="") as file:
        return list(csv.DictReader(file))


def scores(root, column="field"):
    """{(model, target): the cell of the table}."""
    study = Study(root)
    found = report.all_scores(study, column)
    return {(study.arms[a].label, title): str(score) if score else "-" for (a, title), score in found.items()}


def comparisons(root, column="field"):
    study = Study(root)
    found = report.compare_all(study, report.all_scores(study, column), column)
    return {(c.target, study.arms[c.a].label, study.arms[c.b].label): c for c in found}, study


# ----------------------------------------------------------------------------
# The table


def test_the_table_by_hand(tmp_path):
    for seed, right in enumerate((59, 60, 61), 1):
        make_result(tmp_path, seed=seed, lr=1e-4, test=right, validation=70)
        make_result(tmp_path, seed=seed, lr=2e-4, test=80, validation=70)  # of equals the lowest is chosen
        make_result(tmp_path, seed=seed, lr=5e-4, test=90, validation=69)  # best on test: must not be chosen
    text = report.report(tmp_path)
    assert "| mlm            | 60.0 ± 2.5      |" in text  # 4.303 * 1 / sqrt(3)
    assert "| *majority*     | 40.0            |" in text and "sst2 (accuracy)" in text
    assert "### Sequence classification, field's metric" in text and "paper's metric" in text
    row = read(tmp_path, "table.csv")[0]
    assert row["metric"] == "field" and row["lr"] == "0.0001" and float(row["score"]) == 60
    assert float(row["half_width_95"]) == pytest.approx(2.48414, abs=1e-5)
    runs = read(tmp_path, "results.csv")
    assert len(runs) == 9 and {run["status"] for run in runs} == {"done"}
    assert sorted(float(run["field_test"]) for run in runs) == [59, 60, 61, 80, 80, 80, 90, 90, 90]


def test_baselines_are_shown_whichever_run_scored_them(tmp_path):
    for seed in (1, 2, 3):
        folder = make_result(tmp_path, seed=seed)
        if seed != 2:  # a sweep has the baselines of a task scored once
            result = json.loads((folder / "result.json").read_text())
            (folder / "result.json").write_text(json.dumps(result | {"baselines": {}}))
    assert "| *majority*     | 40.0" in report.report(tmp_path)


def test_retrieval_among_judged_documents_only_has_no_fields_metric(tmp_path):
    for name, seed, lr in itertools.product(("mlm", "clm"), (1, 2), (1e-4, 2e-4)):
        folder = make_result(tmp_path, name, "nq", "ir", lr, seed, clm_steps=2000 * (name == "clm"))
        result = json.loads((folder / "result.json").read_text())
        result["main"]["field"] = []
        (folder / "result.json").write_text(json.dumps(result))
        make_result(tmp_path, name, lr=lr, seed=seed, clm_steps=2000 * (name == "clm"))
    report.report(tmp_path)
    assert {scores(tmp_path, "field")[model, "nq"] for model in ("MLM only", "CLM only")} == {"-"}
    assert scores(tmp_path, "paper")["MLM only", "nq"].startswith("50.0")
    assert scores(tmp_path, "field")["MLM only", "sst2"].startswith("50.0")


def test_what_was_trained_on_other_data_is_another_model(tmp_path):
    make_result(tmp_path, "web", pretraining=1, recipe="00000001")
    make_result(tmp_path, "books", pretraining=2, recipe="00000002")
    assert [(arm.label, arm.seeds) for arm in Study(tmp_path).arms] == [("books", [2]), ("web", [1])]


def test_each_column_chooses_its_learning_rate_by_its_own_metric(tmp_path):
    make_result(tmp_path, task="conll", family="tc", lr=1e-4, test=60, validation=80, paper=(30, 10))
    make_result(tmp_path, task="conll", family="tc", lr=2e-4, test=50, validation=70, paper=(20, 90))
    assert scores(tmp_path, "field")["mlm", "conll"] == "60.0 (one seed)"
    assert scores(tmp_path, "paper")["mlm", "conll"] == "20.0 (one seed)"


def test_a_familys_interval_is_computed_seed_by_seed(tmp_path):
    for seed, (one, other) in enumerate(((50, 70), (60, 60), (70, 50)), 1):
        make_result(tmp_path, seed=seed, task="sst2", test=one)
        make_result(tmp_path, seed=seed, task="mnli", test=other)
    found = scores(tmp_path)
    assert found["mlm", "sst2"] == found["mlm", "mnli"] == "60.0 ± 24.8"
    assert found["mlm", "sc mean"] == "60.0 ± 0.0"


def test_what_is_missing_is_shown_as_missing(tmp_path):
    for seed in (1, 2, 3):
        for task in ("sst2", "mnli"):
            make_result(tmp_path, "mlm", task, seed=seed, test=50 + seed)
        if seed != 2:
            make_result(tmp_path, "clm", "sst2", seed=seed, clm_steps=2000, test=50 + seed)
    job = tmp_path / "clm" / "sst2" / "lr-0.0001_seed-2"
    job.mkdir()
    (job / "error.txt").write_text("Traceback (most recent call last):\nRuntimeError: out of memory\n\n")
    (job.parent / "lr-0.0001_seed-1" / "error.txt").write_text("of an earlier attempt")
    found = scores(tmp_path)
    assert found["MLM only", "sc mean"] == "52.0 ± 2.5"
    assert found["CLM only", "sst2"] == "52.0 ± 12.7 (2 of 3 seeds)"
    assert found["CLM only", "mnli"] == found["CLM only", "sc mean"] == "-"
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "failed: `clm/sst2/lr-0.0001_seed-2`: RuntimeError: out of memory" in text and "earlier" not in text
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "| CLM only" in line]
    assert ["sst2", "CLM only", "0.0001", "1.41", "-", "2 of 3", "1", "0", "0"] in cells
    assert ["mnli", "CLM only", "-", "-", "-", "0 of 3", "0", "3", "-"] in cells
    assert [run["error"] for run in read(tmp_path, "results.csv") if run["status"] == "failed"] == [
        "RuntimeError: out of memory"]  # fmt: skip
    missing = [row for row in read(tmp_path, "table.csv") if row["model"] == "CLM only" and row["target"] == "mnli"]
    assert [row["score"] for row in missing] == ["", ""]


def test_a_learning_rate_that_lost_a_seed_is_chosen_only_where_all_have(tmp_path):
    for seed in (1, 2, 3):
        make_result(tmp_path, seed=seed, lr=1e-4, test=50, validation=60)
        if seed < 3:
            make_result(tmp_path, seed=seed, lr=2e-4, test=70, validation=90)
    assert scores(tmp_path)["mlm", "sst2"] == "50.0 ± 0.0"
    (tmp_path / "mlm/sst2/lr-0.0001_seed-1/result.json").unlink()
    assert scores(tmp_path)["mlm", "sst2"] == "70.0 ± 0.0 (2 of 3 seeds)"


def test_several_pretraining_seeds_are_the_unit(tmp_path):
    for pretraining, mlm, clm in ((1, 48, 60), (2, 50, 61), (3, 52, 65)):
        for seed, task in itertools.product((1, 2), ("sst2", "mnli")):
            for name, level, steps in (("mlm", mlm, 0), ("clm", clm, 2000)):
                make_result(
                    tmp_path,
                    f"{name}-seed-{pretraining}",
                    task,
                    seed=seed,
                    test=100 * level + 1000 * seed,
                    n=10**4,
                    pretraining=pretraining,
                    clm_steps=steps,
                    init_from=f"out/seed{pretraining}/a.pt",
                )
    table, (found, _) = scores(tmp_path), comparisons(tmp_path)
    for target in ("sst2", "mnli", "sc mean"):  # tasks share what pretraining did: their mean is no more certain
        assert table["MLM only", target] == "65.0 ± 5.0"  # a standard deviation of 2
        assert table["CLM only", target] == "77.0 ± 6.6"  # of 2.65
        c = found[target, "MLM only", "CLM only"]
        assert (c.units, c.unit) == (3, "pretraining seed") and c.estimate == pytest.approx(-12)  # of 12, 11, 13
        assert 4.3026 / 3**0.5 < c.half < 4.3026 / 3**0.5 + 0.5
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "pretraining noise" not in text and "3 pretraining seeds, p" in text
    assert "| MLM only | mlm-seed-1, mlm-seed-2, mlm-seed-3 | 1, 2, 3" in text


def test_one_of_several_retrieval_sets_may_lack_validation(tmp_path):
    folder = make_result(tmp_path, task="ir", family="ir", validation=0)
    r = json.loads((folder / "result.json").read_text())
    r["main"]["field"] = ["nq/ndcg@10", "mldr/ndcg@10"]
    r["metrics"]["test"] |= {"nq/ndcg@10": 30.0, "mldr/ndcg@10": 50.0}
    r["metrics"]["validation"]["nq/ndcg@10"] = 77.0
    (folder / "result.json").write_text(json.dumps(r))
    study = Study(tmp_path)
    assert study.runs[0].scores["field", "validation"] == 77 and scores(tmp_path)["mlm", "ir"] == "40.0 (one seed)"
    assert ("majority", "field") not in study.baselines["ir"] and ("majority", "paper") not in study.baselines["ir"]


# ----------------------------------------------------------------------------
# Arms


def test_arms_are_labelled_by_what_differs(tmp_path):
    make_result(tmp_path, "a")
    make_result(tmp_path, "b", clm_steps=500)
    make_result(tmp_path, "c", clm_steps=500, max_steps=4000)
    make_result(tmp_path, "d", mask_ratio=0.2)
    make_result(tmp_path, "e", untrained=True, step=0)
    make_result(tmp_path, "f", step=0, max_steps=0, parameters=210_000_000)
    make_result(tmp_path, "g", init_from="out/x/ckpt-9.pt")
    make_result(tmp_path, "h", model={"n_layer": 5})  # differs from a in what has no words
    assert {label for label, _ in scores(tmp_path)} == {
        "MLM only, mask 40%, 2000 steps, from scratch, 1.7M (a)", "25% CLM, mask 40%, 2000 steps, from scratch, 1.7M",
        "25% CLM, mask 40%, step 2000 of 4000, from scratch, 1.7M", "untrained, 1.7M", "f, 210M",
        "MLM only, mask 20%, 2000 steps, from scratch, 1.7M",
        "MLM only, mask 40%, 2000 steps, from out/x/ckpt-9.pt, 1.7M",
        "MLM only, mask 40%, 2000 steps, from scratch, 1.7M (h)"}  # fmt: skip


def test_arms_go_by_name_where_no_fact_tells_them_apart(tmp_path):
    for name in ("books", "web"):
        for pretraining in (1, 2):
            make_result(tmp_path, f"{name}-seed-{pretraining}", pretraining=pretraining)
    study = Study(tmp_path)
    assert [(arm.label, arm.seeds) for arm in study.arms] == [("books", [1, 2]), ("web", [1, 2])]


# ----------------------------------------------------------------------------
# Comparisons


def make_arms(root, gains, seeds=(1, 2, 3), tasks=("sst2",), n=300, noise=0.05, rng_seed=0):
    """Arms {name: (gain in probit units, facts)}; the instances' difficulty is shared, each seed has noise."""
    rng = np.random.default_rng(rng_seed)
    for task in tasks:
        difficulty = rng.normal(size=n)
        for name, (gain, facts) in gains.items():
            for seed in seeds:
                z = gain + difficulty + noise * rng.normal() + 0.3 * rng.normal(size=n)
                make_result(root, name, task, seed=seed, test=z > 0, n=n, **facts)


def test_a_clear_difference_is_found_and_none_is_not(tmp_path):
    make_arms(tmp_path, {"mlm": (0, {}), "split": (1, {"clm_steps": 500}), "clm": (0, {"clm_steps": 2000})},
              seeds=range(1, 6), tasks=("sst2", "mnli"), rng_seed=1)  # fmt: skip
    found, study = comparisons(tmp_path)
    assert len(found) == 9  # three pairs on two tasks and their mean
    for c in found.values():
        better = study.arms[c.better].label if c.better is not None else None
        assert better == ("25% CLM" if "25% CLM" in (study.arms[c.a].label, study.arms[c.b].label) else None)
    mean, one, other = (found[target, "MLM only", "25% CLM"].estimate for target in ("sc mean", "sst2", "mnli"))
    assert mean == pytest.approx((one + other) / 2) and mean < -10
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "Comparisons, corrected together: 9. Distinguishable: 6." in text
    assert "Intervals do not include pretraining noise: one pretraining seed." in text
    number = "[−\\d.]+"
    assert re.search(rf"- \*\*25% CLM\*\* better than \*\*MLM only\*\*: \+{number}, 95 % interval {number} to {number} "
                     r"\(5 seeds, p . [\d.]+, corrected p . [\d.]+\)", text)  # fmt: skip
    found = rf"- MLM only and CLM only: not distinguishable: [+−]{number}, 95 % interval {number} to {number}"
    assert re.search(found, text)
    assert re.search(r"\| 25% CLM +\| 1 +\| 1 +\| 1 +\|", text) and re.search(r"\| MLM only +\| 2-3 +\| 2-3 ", text)
    rows = read(tmp_path, "comparisons.csv")
    for column in ("field", "paper"):
        its = [row for row in rows if row["metric"] == column]
        corrected = stats.holm([float(row["p"]) for row in its])
        assert [float(row["p_holm"]) for row in its] == pytest.approx(corrected.tolist(), rel=1e-4)
        assert len(its) == 9
        assert all(float(row["low_95"]) < float(row["difference"]) < float(row["high_95"]) for row in its)


def test_on_random_labels_no_difference_is_found(tmp_path):
    rng = np.random.default_rng(3)
    for steps, task, seed, lr in itertools.product((0, 500, 1000, 2000), ("sst2", "mnli"), (1, 2, 3), (1e-4, 5e-4)):
        make_result(tmp_path, f"clm-{steps}", task, seed=seed, lr=lr, test=rng.random(300) < 0.5, n=300,
                    validation=100 * rng.binomial(100, 0.5) / 100, clm_steps=steps)  # fmt: skip
    found, _ = comparisons(tmp_path)
    assert len(found) == 18 and all(c.better is None for c in found.values())
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "better than" not in text and text.count("not distinguishable") == 2 * 18 and "| 1-4 " in text


def test_the_interval_counts_the_sample_of_test_instances(tmp_path):
    """Runs that are equal over seeds: all doubt is in the instances, and it is that of the differing answers."""
    n, right = 400, np.arange(400) < 200
    for seed in (1, 2):
        make_result(tmp_path, "mlm", seed=seed, test=right, n=n)
        make_result(tmp_path, "clm", seed=seed, test=right | (np.arange(n) >= 384), n=n, clm_steps=2000)
    c = comparisons(tmp_path)[0]["sst2", "MLM only", "CLM only"]
    assert c.estimate == pytest.approx(-4) and c.half == pytest.approx(1.96 * 100 * (0.04 * 0.96 / n) ** 0.5, rel=0.15)


def test_two_single_pretrainings_pair_by_fine_tuning_seed(tmp_path):
    for seed in (1, 2, 3):
        make_result(tmp_path, "mlm", seed=seed, test=50 + seed, pretraining=1)
        make_result(tmp_path, "clm", seed=seed + 1, test=60 + seed, pretraining=7, clm_steps=2000)
    c = comparisons(tmp_path)[0]["sst2", "MLM only", "CLM only"]
    assert (c.units, c.unit) == (2, "seed") and c.estimate == pytest.approx(-9)  # of seeds 2 and 3 alone


def test_a_task_on_which_untrained_is_as_good_says_nothing_about_pretraining(tmp_path):
    make_arms(tmp_path / "a", {"mlm": (0, {}), "untrained": (0, {"untrained": True, "step": 0})}, seeds=range(5))
    make_arms(tmp_path / "b", {"mlm": (1, {}), "untrained": (0, {"untrained": True, "step": 0})}, seeds=range(5))
    for name, says in (("a", True), ("b", False)):
        report.report(tmp_path / name)
        text = (tmp_path / name / "report.md").read_text()
        assert ("sst2: no pretrained model is clearly better than the untrained one, so it says nothing" in text) == says


def test_a_difference_that_only_the_correction_hides_is_not_called_none(tmp_path):
    for i in range(5):
        make_arms(tmp_path, {f"mlm{i}": (0, {"mask_ratio": 0.1 * (i + 1)})}, seeds=(1, 2))
    make_arms(tmp_path, {"untrained": (-40, {"untrained": True, "step": 0})}, seeds=(1, 2))
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "better than the untrained one, once corrected" in text and "says nothing" not in text


def test_what_cannot_be_compared_says_so(tmp_path):
    """One seed in common; and arms with several pretraining seeds of which none is in common."""
    make_result(tmp_path / "a", "mlm", seed=1)
    make_result(tmp_path / "a", "clm", seed=1, clm_steps=2000)
    report.report(tmp_path / "a")
    text = (tmp_path / "a" / "report.md").read_text()
    assert "MLM only and CLM only: not compared, for with 1 seed in common" in text and "| 1-2 " in text
    for seed, pretraining in itertools.product((1, 2), (1, 2)):
        make_result(tmp_path / "b", f"mlm-{pretraining}", seed=seed, pretraining=pretraining)
        make_result(tmp_path / "b", f"clm-{pretraining}", seed=seed, pretraining=pretraining + 2, clm_steps=2000)
    report.report(tmp_path / "b")
    assert "not compared, for they have no pretraining seed in common" in (tmp_path / "b" / "report.md").read_text()


# ----------------------------------------------------------------------------
# Bad files


def test_damaged_and_foreign_results_are_named(tmp_path):
    folders = [make_result(tmp_path, seed=seed) for seed in (1, 2, 3, 4, 5)]
    (folders[0] / "result.json").write_text('{"task": "ss')
    r = json.loads((folders[1] / "result.json").read_text())
    (folders[1] / "result.json").write_text(json.dumps({k: v for k, v in r.items() if k != "main"}))
    (folders[2] / "result.json").write_text(json.dumps(r).replace('"accuracy": 50.0', '"accuracy": NaN'))
    (folders[3] / "result.json").write_text(json.dumps(r).replace('"sc"', '"cs"'))
    with pytest.raises(DataError) as error:
        Study(tmp_path)
    text = str(error.value)
    assert all(str(folder) in text for folder in folders[:4]) and str(folders[4]) not in text
    assert "lacks 'main'" in text and "finite" in text and "'cs' is none of sc, tc, qa, ir" in text
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no result.json"):
        Study(tmp_path / "empty")


def test_a_run_that_is_there_twice_names_both_and_what_differs(tmp_path):
    make_result(tmp_path / "a")
    make_result(tmp_path / "b", settings={"causal": True})
    with pytest.raises(DataError, match=r"(?s)twice.*a/mlm/sst2/lr-0.0001_seed-1.*b/mlm/sst2.*differ: causal"):
        Study(tmp_path)


def test_different_test_sets_are_not_compared(tmp_path):
    make_result(tmp_path, "mlm", seed=1)
    make_result(tmp_path, "mlm", seed=2, n=99)
    with pytest.raises(DataError, match=r"(?s)sst2: two test sets.*mlm/sst2/lr-0.0001_seed-1: 100 .*seed-2: 99 "):
        Study(tmp_path)


@pytest.mark.parametrize("damage, message", [
    (lambda path, right: np.savez(path, accuracy=right[:90]), "two test sets"),
    (lambda path, right: np.savez(path, accuracy=np.ones_like(right)), "not the accuracy of 50.0 in result.json"),
    (lambda path, right: np.savez(path, f1=right), "accuracy"),
    (lambda path, right: path.write_bytes(path.read_bytes()[:200]), "make this run again"),
    (lambda path, right: path.unlink(), "No such file"),
])  # fmt: skip
def test_damaged_instances_are_named(tmp_path, damage, message):
    for name, steps in (("mlm", 0), ("clm", 2000)):
        folder = make_result(tmp_path, name, clm_steps=steps)
    path = folder / "instances.npz"
    damage(path, np.load(path)["accuracy"])
    with pytest.raises(DataError, match=message) as error:
        report.report(tmp_path)
    assert str(path) in str(error.value)


def test_test_sets_of_one_size_are_told_apart_by_their_checksum(tmp_path):
    make_result(tmp_path, "mlm", seed=1)
    file = make_result(tmp_path, "mlm", seed=2) / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"test_set": "12345678"}))
    with pytest.raises(DataError, match=r"(?s)sst2: two test sets.*seed-1: 100 examples, checksum 00000000.*12345678"):
        Study(tmp_path)


def test_settings_that_differ_between_runs_are_told(tmp_path):
    make_result(tmp_path, seed=1, settings={"batch": 32, "out_dir": "x"})
    make_result(tmp_path, seed=2, settings={"batch": 16, "out_dir": "y"})
    report.report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "- sst2: runs differ in `batch`: 16, 32" in text and "out_dir" not in text


# ----------------------------------------------------------------------------
# The script and its figures


def test_the_script(tmp_path, monkeypatch, capsys):
    results, written = tmp_path / "results", tmp_path / "out"
    make_result(results, "mlm")

    def main(*args):
        monkeypatch.setattr(report, "out", "")
        monkeypatch.setattr(sys, "argv", ["eval/report.py", *map(str, args)])
        try:
            report.main()
        except SystemExit as stop:
            return stop.code, capsys.readouterr()
        return 0, capsys.readouterr()

    code, text = main(results, f"--out={written}", "--resamples=100")
    assert code == 0 and "50.0 (one seed)" in text.out and text.out.rstrip().endswith("out/report.md")
    assert str(tmp_path) not in (written / "report.md").read_text() and not (results / "report.md").exists()
    code, text = main(results, "--resample=500")
    assert code == 2 and "unknown setting" in text.err
    code, text = main(results, "--resamples=5", f"--out={written}/report.md")
    assert code == 2 and "at least 100" in text.err and "must be a folder" in text.err
    code, text = main("--help")
    assert code == 0 and "RESULTS_DIR" in text.out and "resamples = 2000" in text.out and "MOST" not in text.out
    for args in ([], ["--out=x"], [tmp_path / "absent"]):
        code, _ = main(*args)
        assert "usage: python eval/report.py RESULTS_DIR" in code
    make_result(results, "mlm", seed=2, validation=np.nan)
    code, _ = main(results)
    assert "seed-2/result.json" in code


def test_a_repeat_gives_the_same_report(tmp_path):
    make_arms(tmp_path, {"mlm": (0, {}), "clm": (0.3, {"clm_steps": 2000})})
    report.report(tmp_path)
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.[mc][ds]*")}
    report.report(tmp_path)
    assert len(written) == 4 and written == {name: (tmp_path / name).read_bytes() for name in written}


def test_figures_are_made_where_they_have_more_than_one_x(tmp_path):
    pytest.importorskip("matplotlib")

    def drawn():
        study = Study(tmp_path)
        paths = figures.draw(study, report.all_scores(study, "field"), "field", "field's metric", tmp_path)
        assert sorted(paths) == sorted(tmp_path.glob("*.png")) and all(path.stat().st_size > 5000 for path in paths)
        return [path.name.removesuffix("-field.png") for path in paths]

    make_result(tmp_path, "mlm")
    make_result(tmp_path, "untrained", untrained=True, step=0, clm_steps=0)
    assert drawn() == []
    make_result(tmp_path, "clm", clm_steps=2000)
    make_result(tmp_path, "half", step=1000)
    assert drawn() == ["share", "step"]
    shutil.rmtree(tmp_path / "half")
    make_result(tmp_path, "mask", mask_ratio=0.2)
    make_result(tmp_path, "mlm", lr=5e-4)
    assert drawn() == ["share", "mask", "lr"]  # and the figure over steps, of other results, is gone
    shutil.rmtree(tmp_path / "clm")
    shutil.rmtree(tmp_path / "mask")
    shutil.rmtree(tmp_path / "mlm/sst2/lr-0.0005_seed-1")
    make_result(tmp_path, "long", step=50_000, max_steps=50_000)
    assert drawn() == ["step"]  # through the ends of two budgets
    report.report(tmp_path)
    assert "![step-paper](step-paper.png)" in (tmp_path / "report.md").read_text()


def test_without_matplotlib_there_are_no_figures(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    make_result(tmp_path, "mlm")
    make_result(tmp_path, "clm", clm_steps=2000)
    assert "50.0" in report.report(tmp_path) and not list(tmp_path.glob("*.png"))
    assert "Figures" not in (tmp_path / "report.md").read_text()
