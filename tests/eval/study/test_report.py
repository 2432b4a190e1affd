"""Scores, comparisons and reports of made-up results whose tables are known by hand or by construction."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from study_helpers import facts_of, make_result, plan_of, write_result

from errors import DataError
from eval.study import figures, report, stats
from eval.study.run import job_folder

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def fast(monkeypatch, request):
    """Few resamples, and no figures except in their test, because these take most of the time."""
    monkeypatch.setattr(stats, "RESAMPLES", 200)
    if "figure" not in request.node.name:
        monkeypatch.setattr(figures, "draw", lambda *_: {})


def read_csv(folder, name):
    with open(Path(folder, name), newline="") as file:
        return list(csv.DictReader(file))


def write(root, **settings):
    """Return the text of the report on a folder."""
    report.write(plan_of(runs="", out_dir=root, **settings))
    return (root / "report/report.md").read_text()


def results_in(root, metric="field"):
    return report.read_results(plan_of(runs="", metrics=metric, out_dir=root))


MAIN = {"cola": {"field": ["matthews"], "paper": ["accuracy"]}, "nq": {"field": [], "paper": ["ndcg@10_judged"]}}
MAIN["nq0"] = MAIN["nq"]  # zero-shot
MAIN["msmarco"] = {"field": [], "paper": ["nq/ndcg@10_judged", "mldr/ndcg@10_judged"]}
MAIN["conll"] = {"field": ["entity_f1"], "paper": ["sentence_macro_f1"]}
CASES = (HERE / "scores.txt").read_text().strip().split("\n\n")[1:]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.partition("\n")[0])
def test_scores_by_hand(tmp_path, case):
    """See scores.txt."""
    for line in case.splitlines()[1:]:
        if ";" in line:
            metric, model, target, cell = line.split("; ")
            results, (a, *b) = results_in(tmp_path, metric), model.split(" - ")
            target = results.main_target if target == "main" else target
            found = results.compare(a, *b, target) if b else results.score(a, target) or "-"
            assert f"{found}, {found.over}" == cell if b else str(found) == cell, line
            continue
        model, task, rate, test, validation = line.split()
        family, main = {"conll": "tc", "nq": "ir", "nq0": "ir", "msmarco": "ir"}.get(task, "sc"), MAIN.get(task)
        names = sum(main.values(), []) if main else ["accuracy"]
        by_name = lambda numbers: dict(zip(names, map(float, numbers.split("/") * 2)))  # noqa: E731
        facts = dict(seed=int(model[-1])) if "-seed-" in model else {}
        for seed, score in enumerate(test.split(","), 1):
            if score != "-":
                more = dict(family=family, main=main, test=by_name(score), validation=by_name(validation))
                folder = make_result(tmp_path, model, task, float(rate), seed, facts, **more)
                edit(folder, lambda result: result.update(zero_shot=result["task"] == "nq0"))


def test_a_deviation_takes_all_tasks_and_a_primary_pair_names_models(tmp_path):
    for model, task, seed in itertools.product(("mlm", "clm"), ("sst2", "mnli"), (1, 2)):
        if (model, task) != ("clm", "mnli"):
            make_result(tmp_path, model, task, seed=seed, test=50 + seed)
    results = results_in(tmp_path)
    assert results.deviation("mlm", "sc mean").mean == results.deviation("clm", "sst2").mean == pytest.approx(0.5**0.5)
    assert results.deviation("clm", "sc mean") is None
    with pytest.raises(DataError, match="primary: there is no 'mml'. The models are clm, mlm"):
        write(tmp_path, primary=(("mml", "clm"),))


def test_seeds_that_were_not_pretrained_alike_are_told(tmp_path):
    for seed in (1, 2):
        make_result(tmp_path / f"{seed}", seed=seed, facts=dict(seed=seed, clm=seed, settings={"lr": seed / 1000}))
        make_result(tmp_path / "hub", "bert", seed=seed, facts=dict(revision=seed))
    text = write(tmp_path)
    assert "mlm differ in `lr`: 0.001, 0.002\n" in text and "bert differ in `revision`: 1, 2\n" in text
    assert "| mlm " in write(next(tmp_path.glob("1/**/result.json")).parent)  # the folder of a single result


def edit(folder, change):
    """Change the result.json of a folder."""
    result = json.loads((folder / "result.json").read_text())
    change(result)
    (folder / "result.json").write_text(json.dumps(result))


DAMAGE = {  # of one of four results -> what is told; a folder is named too
    "expected finite": lambda f: edit(f, lambda r: r["metrics"]["test"].update(accuracy=float("nan"))),
    "KeyError.*tokens": lambda f: edit(f, lambda r: r["checkpoint"].pop("tokens")),  # made by an older version
    "have different test sets": lambda f: edit(f, lambda r: r.update(test_set="1")),
    "are the same model, task": lambda f: shutil.copytree(f.parents[1], f.parents[1].with_name("copy")),
    r"has shape .9, 1, 2., in": lambda f: np.savez(f / "instances.npz", accuracy=np.ones((9, 1, 2))),
    "The comparisons need it": lambda f: (f / "instances.npz").unlink(),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_what_is_damaged_or_cannot_be_compared_is_an_error(tmp_path, message):
    folders = [make_result(tmp_path, name, seed=seed) for name in ("mlm", "clm") for seed in (1, 2)]
    DAMAGE[message](folders[-1])
    with pytest.raises(DataError, match=f"/sst2/lr-0.0001_seed-(.|\n)*{message}|{message}(.|\n)*/sst2/lr-0.0001_seed-"):
        write(tmp_path)


ROWS = (
    ("clm", "", "--switch_step=40"),
    ("mlm", "", "--switch_step=0"),
    ("split", "clm@20", "--switch_step=20"),
    ("longer", "mlm", "--max_steps=10 --warmup_steps=1 --decay_steps=2 --switch_step=0 --mask_proportions=.5,.5,0"),
)
PRIMARY = ("split", "mlm"), ("clm", "mlm"), ("mlm", "random-mlm"), ("longer", "mlm")
STUDY = dict(runs=ROWS, train="--max_steps=40 --warmup_steps=1 --decay_steps=5", random="mlm", primary=PRIMARY)
STUDY |= dict(tasks="sst2,mrpc,cola,wnut17", rates="1e-3,3e-3", seeds="1,2,3", finetune_seeds="1,2")
GAINS = {"split": 40, "random-mlm": -60, "longer": 10}  # of models, in test instances of 400


def fill(plan):
    """Write what the runs log, and a result of every fine-tuning. On sst2, clm and mlm tie with each seed."""
    for run in plan.runs.values():
        run.folder.mkdir(parents=True)
        losses = {"val_clm_loss": 6.0, "val_mlm_loss": 5 + run.seed / 10, "tokens": 9}
        lines = [{"step": step, "phase": "mlm", **losses} for step in range(run.start, run.max_steps + 1, 5)]
        (run.folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for model, task, rate, seed in plan.points():
        clm = min(model.run.settings.switch_step, model.run.max_steps)
        about = dict(settings=model.run.settings, untrained=model.kind == "random", seed=model.run.train_seed)
        chance = 0 if task == "sst2" else sum(map(ord, model.label + task)) * model.run.seed % 7
        right = 280 + GAINS.get(model.label, 0) + 3 * model.run.seed + seed + chance
        best = 1e-3 if model.run.seed == 2 else 3e-3
        main = {"field": ["matthews"], "paper": ["accuracy"]} if task == "cola" else None
        result = dict(task=task, family="tc" if task == "wnut17" else "sc", main=main, lr=rate or best, seed=seed)
        result |= dict(test=right, n=400, validation=60 + 10 * (rate == best))
        folder = plan.results / job_folder(model, task, rate or best, seed)
        write_result(folder, facts_of(model.folder, clm, model.run.max_steps, **about), **result)


def study(plan):
    return report.write(plan), Path(plan.cfg.out_dir, "report/report.md").read_text()


def test_the_report_on_a_study_is_as_before(tmp_path):
    """A model without results, a missing seed, a failed run, a run that did not end, two versions of the code."""
    plan = plan_of(**STUDY, out_dir=tmp_path / "study")
    assert "0 of 12 runs are there\n" in (text := study(plan)[1]) and text.count("**Open: ") == 4
    fill(plan)
    for folder in plan.results.glob("longer-*"):
        shutil.rmtree(folder)
    shutil.rmtree(plan.results / "clm-seed-3/wnut17")
    failed = plan.results / "random-mlm-seed-1/cola/lr-0.003_seed-2"
    (failed / "result.json").unlink()
    (failed / "error.txt").write_text("9 %|\r10 %|\nRuntimeError: out of memory\n\nx --help lists every setting.\n")
    (plan.results / "clm-seed-1/sst2/lr-0.001_seed-1/error.txt").write_text("of an earlier attempt")  # does not count
    edit(plan.results / "mlm-seed-2/sst2/lr-0.001_seed-1", lambda result: result["settings"].update(code=7))
    for run in plan.runs.values():
        (run.folder / "source").mkdir()
        (run.folder / "source/model.py").write_text("one")
        (run.folder / "source/train.py").write_text("one" if run.row == "mlm" else "two")
    log = plan.runs["clm", 1].folder / "metrics.jsonl"  # stopped where split begins
    log.write_text(log.read_text().partition('{"step": 20')[0])
    answer, text = study(plan)
    assert text == (HERE / "report.md").read_text()
    assert all(block in text for block in answer.split("\n\n")[:-1]) and answer.endswith("study/report/report.md")
    compared = (read_csv(folder, "comparisons.csv") for folder in (tmp_path / "study/report", HERE))
    for row, same in zip(*compared, strict=True):
        for name, cell in row.items():
            assert cell == same[name] or float(cell) == pytest.approx(float(same[name]), rel=1e-4), (row, name)
    split = plan.runs["split", 1]
    assert [line["step"] for line in report.whole_log(split, 40)] == [*range(0, 41, 5)]  # those before 20 are of clm
    untrained = [row for row in read_csv(tmp_path / "study/report", "results.csv") if row["model"] == "random-mlm"]
    assert {(row["step"], row["tokens"], row["mask_ratio"]) for row in untrained} == {("0", "0", "0")}


def test_a_line_of_the_table_of_figures_is_a_line_of_a_figure(tmp_path, monkeypatch):
    entries = (
        ("scores stability", "clm_fraction tokens", "mlm split clm", "three"),
        ("scores", "clm_fraction", "random-mlm", "one"),  # is horizontal
        ("scores losses", "steps_added", "mlm longer", "two"),
    )
    plan = plan_of(**STUDY | dict(seeds="1,2", full_grid=True), out_dir=tmp_path, figures=entries)
    fill(plan)
    drawn, draw_lines = {}, figures.draw_lines

    def draw(path, panels, *labels):
        if not drawn:  # one is drawn
            draw_lines(path, panels, *labels)
        drawn[path.stem] = panels

    monkeypatch.setattr(figures, "draw_lines", draw)
    _, text = study(plan)
    assert len(drawn) == 6 and all(f"]({name}.png)" in text for name in drawn)
    lines = drawn["scores_clm_fraction"]["mean of families"]
    ((mlm, split, clm),), (((x, y, _),),) = lines["three"], lines["one"]
    assert (mlm[0], split[0], clm[0]) == (0, 0.5, 1) and split[1] > max(mlm[1], clm[1]) + 8 and np.isnan(x) and y < 60
    assert [x for x, *_ in drawn["scores_tokens"]["sst2"]["three"][0]] == [40 * 4096] * 3
    assert [x for x, *_ in drawn["scores_steps_added"]["sst2"]["two"][0]] == [0, 10]  # what is continued, at 0
    assert all(0 < y < 1 for _, y, _ in drawn["stability_tokens"]["sst2"]["three"][0])
    assert [len(curves) for curves in drawn["losses_steps_added"]["MLM"].values()] == [4]  # a curve for each seed
