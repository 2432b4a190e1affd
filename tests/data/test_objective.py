"""What the windows of a step train, and the record of what a run has trained."""

import dataclasses
import math
from types import SimpleNamespace

import pytest

from data import objective as module
from data.loader import mixing_pattern
from data.objective import CLM, MLM, group_windows, is_decoder, predicts_from
from errors import DataError
from eval.study.branch import TRAIN, globals_of
from helpers import record


def of_ranks(objective, world_size, micro_batch, n_windows=24):
    """The micro-batches of all processes in a step."""
    groups = group_windows(objective, None, n_windows, step=7)
    return [module.micro_batches(groups, micro_batch, rank, world_size) for rank in range(world_size)]


def a_ratio_for_each(step, window, n_windows, cfg):
    assert (step, n_windows) == (7, 24)
    return CLM() if window < 6 else MLM(window / n_windows)


@pytest.mark.parametrize("world_size, micro_batch", [(1, 24), (1, 5), (2, 4), (3, 1), (5, 2), (6, 100)])
def test_every_window_once_and_each_micro_batch_of_one_name(world_size, micro_batch):
    """Every process has the same number of micro-batches, as few as there can be: with shards they work together."""
    ranks = of_ranks(a_ratio_for_each, world_size, micro_batch)
    windows = [pair for its in ranks for part in its for pair in part.windows]
    assert sorted(windows, key=lambda pair: pair[1]) == [(a_ratio_for_each(7, i, 24, None), i) for i in range(24)]
    for kind, n in (("clm", True), 6), (("mlm", False), 18):
        for of_rank in ranks:
            sizes = [len(part.windows) for part in of_rank if (part.name, part.causal) == kind and part.is_own]
            assert len(sizes) == math.ceil(n / world_size / micro_batch)
            assert max(sizes) <= micro_batch and max(sizes) - min(sizes) <= 1 <= min(sizes)
    assert module.phase_of(group_windows(a_ratio_for_each, None, 24, 7)) == "clm + mlm"


def test_an_objective_and_a_class_based_on_it_share_no_micro_batch():
    Based = type("Based", (MLM,), {})
    [parts] = of_ranks(lambda step, window, n_windows, cfg: [MLM, Based][window % 2](), 1, 24)
    assert [[type(what) for what, _ in part.windows] for part in parts] == [[MLM] * 12, [Based] * 12]


def test_the_checksum_of_a_schedule_counts_fields_but_not_addresses():
    Span = dataclasses.make_dataclass("Span", [("span", object, 3)], bases=(MLM,), frozen=True)
    a, b, c, d = (module.checksum_of([{Span(span=span): range(4)}]) for span in (3, 4, lambda: 3, lambda: 4))
    assert a != b and c == d


@pytest.mark.parametrize("n_windows, draws", [(8, 125), (20, 50), (200, 5), (11, 100)])
def test_clm_windows_come_from_all_sources(n_windows, draws):
    """A source of a mixture may have the same place in each step."""
    sources, _ = mixing_pattern([1000 - draws, draws])
    objective = globals_of(TRAIN)["objective"]
    cfg = SimpleNamespace(switch_step=0, clm_windows=0.25, mask_ratio=0.4, predict_from="mask", mask_proportions=())
    steps = [divmod(i, n_windows) for i in range(400 * n_windows) if sources[i % 1000]]
    clm = [objective(*place, n_windows, cfg).name == "clm" for place in steps]
    assert sum(clm) / len(clm) == pytest.approx(0.25, abs=0.05)


def test_windows_may_be_left_out_but_not_all():
    expected = [[("mlm", False, [(MLM(), window)], counts)] for window, counts in ((0, True), (1, True), (0, False))]
    assert of_ranks(lambda step, window, n_windows, cfg: MLM() if window < 2 else None, 3, 4) == expected
    with pytest.raises(DataError, match="it must keep at least one"):
        of_ranks(lambda *_: None, 1, 4)


def test_the_record_of_phases():
    clm, mlm = {CLM(): range(4)}, {MLM(): range(4)}
    before = {MLM(0.2, "before"): range(4)}
    mixed = [{CLM(): [0], MLM(ratio): [1, 2, 3]} for ratio in (0.2, 0.3, 0.15)]
    two = {MLM(0.3): range(3), MLM(0.15): [3]}
    MLM40, falls = "MLM (40 % masked) for 1 steps", "20 % masked at first, 15 % masked at last"
    bert = {MLM(0.15, proportions=(0.8, 0.1, 0.1)): range(4)}
    for steps, words, clm_total, ratio in (
        ([clm, mlm, mlm], "CLM for 1 steps, then MLM (40 % masked) for 2 steps", 1, 0.4),
        ([before], "MNTP (20 % masked) for 1 steps", 0, 0.2),
        ([bert], "MLM (15 % masked, of these 80/10/10) for 1 steps", 0, 0.15),
        (mixed, f"CLM in 25 % of the windows and MLM ({falls}) in 75 % of the windows for 3 steps", 0.75, 0.3),
        ([two, two], "MLM (30 % masked to 15 % masked) for 2 steps", 0, 0.3),
        ([clm, mlm] * 3, ", then ".join([*["CLM for 1 steps", MLM40] * 2, "2 more phases"]), 3, 0.4),
    ):
        phases = record(*steps)
        assert module.describe(phases) == words and sum(its["steps"] for its in phases) == len(steps)
        assert (module.clm_steps(phases), module.largest_mask_ratio(phases)) == (clm_total, ratio)
    for steps, expected in ([before, clm], "before"), ([before, mlm], "mask"), ([clm], "mask"):
        assert predicts_from(record(*steps)) == expected
    assert is_decoder(record(mlm, clm)) and not is_decoder(record(clm, mlm)) and not is_decoder(record(mixed[0]))
