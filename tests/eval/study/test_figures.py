"""What the figures of a study's page show, for made-up results of the paper's study."""

import itertools
from statistics import stdev

import pytest
from helpers import ROOT

from eval.study import costs, report
from eval.study.page import Page, stability_section
from eval.study.results import Results, Run

RATES = {1e-5: 0, 2e-5: 1, 5e-5: 2, 1e-4: 3, 2e-4: 40, 5e-4: 50}  # what each rate adds to a score
SEEDS = {1: -1, 2: 0, 3: 1}
TASKS = '--tasks=(("sst2", ""), ("qqp", ""), ("squad", ""))'
TUNING = TASKS, "--finetune_seeds=1,2,3", f"--finetune_lrs={tuple(RATES)}"


@pytest.fixture(scope="module")
def plan(plan_of):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return plan_of("config/study_paper.py", *TUNING)


class Drawn(Page):
    """A page that keeps what it would draw: {figure: {panel: ({line: [(x, y), ...] of each run}, {level: y})}}."""

    def __init__(self, folder):
        super().__init__(folder, "paper", 100)
        self.figures = {}

    def draw(self, name, draw, panels, *labels, note=""):
        if name == "continued_loss":
            super().draw(name, draw, panels, *labels)
        self.figures[name] = {
            title: ({k: [[(x, y) for x, y, _ in line] for line in its] for k, its in lines.items()}, levels)
            for title, (lines, levels) in panels.items()
        }


def level(plan, model):
    """The score of a model at the rate that validation chooses, the lowest."""
    return plan.models.index(model) / 2


def results_of(plan, names=()):
    runs, parameters = [], {size: costs.count_weights(config) for size, (_, config) in plan.shape.items()}
    for model, (task, _), lr, seed in plan.points():
        run, step = model.run, model.step or model.run.budget
        size = plan.size if run.size in plan.named else run.size
        facts = dict(name=model.name, model=size, recipe=size, parameters=parameters[run.size], seed=run.seed)
        facts |= dict(step=step, max_steps=run.budget, clm_steps=min(run.clm, step), mask_ratio=run.mask, peak_lr=5e-4)
        facts |= dict(init_from=run.base.name if run.base else "", untrained=model.random_weights)
        result = dict(task=task, family="qa" if task == "squad" else "sc", lr=lr, seed=seed, checkpoint=facts)
        result |= dict(versions={}, settings={}, baselines={}, examples={"test": 100}, test_set=task)
        result["main"] = {"field": ["accuracy"], "paper": ["accuracy"]}
        test = level(plan, model) + RATES[lr] + SEEDS[seed]
        result["metrics"] = {"validation": {"accuracy": -lr}, "test": {"accuracy": test}}
        runs.append(Run(f"{model.name}/{task}/lr-{lr:g}_seed-{seed}", result))
        runs[-1].facts["named"] = dict(names).get(model.name, "")
    return Results("", runs, {})


@pytest.fixture(scope="module")
def drawn(plan, tmp_path_factory):
    page = Drawn(tmp_path_factory.mktemp("report"))
    shown = report.scores_section(page, plan, results_of(plan))
    stability_section(page, shown, shown)
    assert set(page.figures) == {"clm_fraction", "flops", "steps", "size", "mask_ratio", "stability"}
    assert {tuple(panels) for panels in page.figures.values()} == {("sc mean", "qqp", "sst2", "squad")}
    shown = {name: panels["sst2"] for name, panels in page.figures.items()}
    return {name: ({k: line for k, (line,) in lines.items()}, levels) for name, (lines, levels) in shown.items()}


def expected(plan, names, x_values):
    """The points of models, given by name, with these x."""
    models = {model.name: model for model in plan.models}
    return [(pytest.approx(x), level(plan, models[name])) for x, name in zip(x_values, names, strict=True)]


def test_scores_over_the_share_of_clm_have_a_line_for_each_budget_and_size(plan, drawn):
    lines, levels = drawn["clm_fraction"]
    assert set(lines) == {*(f"{k},000 steps, 756M" for k in (12, 22, 42)), "42,000 steps, 310M", "42,000 steps, 1.4B"}
    names = [f"1b-{kind}-42k-42000" for kind in ("mlm40", "clm-10k-mlm40", "clm")]
    assert lines["42,000 steps, 1.4B"] == expected(plan, names, [0, 1000 / 42, 100])
    names = [f"610m-{kind}-12k-12000" for kind in ("mlm40", *(f"clm-{k}k-mlm40" for k in (3, 6, 9)), "clm")]
    assert lines["12,000 steps, 756M"] == expected(plan, names, [0, 25, 50, 75, 100])
    assert sorted(levels.values()) == [level(plan, model) for model in plan.random]


def test_variants_are_not_in_the_figure_over_the_share_of_clm(plan_of, tmp_path):
    """A mixture of equal shares is not 50 % CLM."""
    plan = plan_of('--variants=(("mixed 1:1", "--clm_windows=0.5"),)', "--splits=((650, 0, 325, 650),)", *TUNING)
    results = results_of(plan, {model.name: "mixed 1:1" for model in plan.finals if model.run.size == "mixed-1-1"})
    report.scores_section(page := Drawn(tmp_path), plan, results)
    lines, levels = page.figures["clm_fraction"]["sst2"]
    (line,) = lines.values()
    assert [x for x, _ in line[0]] == [0, 50, 100]
    scores = {model.name: level(plan, model) for model in plan.models}
    assert levels == {"randomly initialized": scores["random-demo"]}
    assert not page.figures.keys() & {"flops", "steps", "size", "mask_ratio"}


def test_scores_by_size_have_a_line_for_each_pure_objective(plan, drawn):
    lines, levels = drawn["size"]
    sizes = [costs.count_weights(plan.shape[size][1]) / 1e6 for size in ("210m", "610m", "1b")]
    assert sizes == pytest.approx([310.3, 755.6, 1409.5], abs=0.1) and not levels
    for label, kind in {"CLM only": "clm", **{f"MLM only, mask {m} %": f"mlm{m}" for m in (20, 30, 40, 50)}}.items():
        assert lines.pop(label) == expected(plan, [f"{s}-{kind}-42k-42000" for s in ("210m", "610m", "1b")], sizes)
    split = [f"{size}-clm-10k-mlm40-42k-42000" for size in ("610m", "1b")]
    assert lines.pop("23.8 % CLM, mask 40 %") == expected(plan, split, sizes[1:])
    names = [f"random-{size}" for size in ("210m", "610m", "1b")]
    assert lines == {"randomly initialized": expected(plan, names, sizes)}


def test_scores_over_mask_ratios_have_a_line_for_each_size_and_the_late_switch(plan, drawn):
    lines, levels = drawn["mask_ratio"]
    wanted = {"MLM only, 310M": "210m-{}-42k", "MLM only, 756M": "610m-{}-42k", "MLM only, 1.4B": "1b-{}-42k"}
    wanted["95.2 % CLM, 756M"] = "610m-clm-40k-{}-42k"
    ratios = 20, 30, 40, 50
    for label, name in wanted.items():
        assert lines[label] == expected(plan, [f"{name.format(f'mlm{m}')}-42000" for m in ratios], ratios)
    assert len(lines) == 4 and not levels


def test_scores_by_flops_count_the_shared_steps(plan, drawn):
    lines, _ = drawn["flops"]
    assert set(lines) == {"MLM only", *(f"about {share} % CLM" for share in (25, 50, 75)), "CLM only"}
    budgets = 12, 22, 42
    # 6 FLOPs per token for each weight; attention counts half under a causal mask, the head at predicted tokens alone.
    blocks, attention, head = 460.06e6, 26 * 2 * 2048 * 1152, 128_256 * 1152
    clm, mlm = (6 * 2_359_296_000 * n for n in (blocks + attention / 2 + head, blocks + attention + 0.4 * head))
    for label, steps in {"MLM only": (0, 0, 0), "about 25 % CLM": (3, 5, 10), "CLM only": budgets}.items():
        flops = [k * clm + (budget - k) * mlm for k, budget in zip(steps, budgets)]
        assert [x for x, _ in lines[label]] == pytest.approx(flops, rel=1e-3)
    names = [f"610m-clm-{k}k-mlm40-{budget}k-{budget}000" for k, budget in zip((9, 17, 32), budgets)]
    assert [y for _, y in lines["about 75 % CLM"]] == [y for _, y in expected(plan, names, budgets)]


def test_scores_over_steps_follow_the_pure_runs(plan, drawn):
    lines, levels = drawn["steps"]
    steps = 1000, 2000, 5000, 10_000, 20_000, 40_000, 42_000
    for label, kind in {"MLM only": "mlm40", "CLM only": "clm"}.items():
        assert lines.pop(label) == expected(plan, [f"610m-{kind}-42k-{step}" for step in steps], steps)
    assert not lines and [*levels.values()] == [level(plan, model) for model in plan.random if model.run.size == "610m"]


def test_stability_is_the_deviation_over_seeds_and_the_lower_rates(plan, drawn, tmp_path):
    lines, levels = drawn["stability"]
    assert set(lines) == set(drawn["clm_fraction"][0])
    both = stdev(rate + seed for rate, seed in itertools.product((0, 1, 2, 3), SEEDS.values()))
    values = [*levels.values(), *(y for line in lines.values() for _, y in line)]
    assert values == pytest.approx([both] * len(values)) and len(values) == 3 + 3 * 5 + 1 + 2 + 3
    # Not with one rate alone, and not if rates have other seeds, as with choose_once.
    for left in (lambda run: run.lr < 2e-5, lambda run: run.lr < 2e-5 or run.seed == 1):
        runs = [run for run in results_of(plan).runs if left(run)]
        shown = report.scores_section(page := Drawn(tmp_path), plan, Results("", runs, {}))
        stability_section(page, shown, shown)
        assert "clm_fraction" in page.figures and "stability" not in page.figures


def test_the_loss_of_continued_pretraining(plan, tmp_path):
    pytest.importorskip("matplotlib")
    curves = {}
    for name, run in plan.runs.items():
        loss = 2.5 if run.base and run.base.clm else 2.0
        curves[name] = [{"step": step, "val_mlm_loss": loss - step / 1e6} for step in (500, 1000, run.budget)]
    longest = {name: curve for name, curve in curves.items() if not plan.runs[name].base or curve[-1]["step"] == 22_000}
    for its, title in ((longest, "continued pretraining"), (curves, "continued pretraining (pale: shorter runs)")):
        report.continued_loss_section(page := Drawn(tmp_path), plan, its)
        lines, levels = page.figures["continued_loss"].pop(title)
    for label, loss in {"from CLM": 2.5, "from MLM": 2.0}.items():
        ends = [(steps, loss - steps / 1e6) for steps in (22_000, 12_000, 2_000)]
        assert [line[-1] for line in lines[label]] == ends and lines[label][0][0] == (500, loss - 500 / 1e6)
    assert (tmp_path / "continued_loss.png").stat().st_size > 5000
    assert len(lines) == 2 and levels == {"the MLM model before": 2.0 - 0.042}
    report.continued_loss_section(page := Drawn(tmp_path), plan, {})
    assert not page.figures and not page.parts
