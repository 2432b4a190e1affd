"""Micro-batches of one kind, and the record of what a run has trained."""

import pytest

import configurator
from data.objective import CLM, MicroBatch, Objective, add_step, describe, micro_batches, phase_of, predicts_from

MLM = Objective(mask_ratio=0.4)


def parts(objective, world_size, micro_batch, n_windows=24):
    """The micro-batches of all processes in a step."""
    cfg = configurator.Settings(micro_batch=micro_batch)
    return [micro_batches(objective, cfg, n_windows, rank, world_size, step=7) for rank in range(world_size)]


@pytest.mark.parametrize("world_size, micro_batch", [(1, 24), (1, 5), (2, 4), (3, 1), (6, 100)])
def test_every_window_once_and_each_micro_batch_of_one_kind(world_size, micro_batch):
    def objective(step, window, n_windows, cfg):
        assert (step, n_windows) == (7, 24)
        return CLM if window < 6 else MLM

    of_ranks = parts(objective, world_size, micro_batch)
    windows = [(window, kind) for its in of_ranks for kind, its in its for window in its]
    assert sorted(windows) == [(window, CLM if window < 6 else MLM) for window in range(24)]
    assert len({str([(kind, len(its)) for kind, its in its]) for its in of_ranks}) == 1  # all do the same work
    for kind in (CLM, MLM):
        for of_rank in of_ranks:  # full micro-batches, then one remainder: as few as there can be
            *full, last = [len(its) for what, its in of_rank if what == kind]
            assert set(full) <= {micro_batch} and 0 < last <= micro_batch
    assert [phase_of(its) for its in of_ranks] == ["mixed"] * world_size


def test_a_prime_number_of_windows_makes_few_micro_batches():
    """config/610m.py on 8 processes: 144 windows each, of which 43 are CLM, in micro-batches of 24."""
    of_ranks = parts(lambda step, window, n_windows, cfg: CLM if window < 43 * 8 else MLM, 8, 24, 144 * 8)
    assert [len(batches) for batches in of_ranks] == [2 + 5] * 8


def record(*steps):
    phases = []
    for step in steps:
        add_step(phases, [MicroBatch(*batch) for batch in step])
    return phases


def test_the_record_of_phases():
    clm, mlm = [(CLM, range(4))], [(MLM, range(2)), (MLM, range(2, 4))]
    before = [(Objective(False, 0.2, "before"), range(4))]
    mixed = [[(CLM, [0]), (Objective(mask_ratio=ratio), [1, 2, 3])] for ratio in (0.3, 0.2, 0.15)]
    for steps, words, clm_steps in (
        ([clm, mlm, mlm], "CLM for 1 steps, then MLM (40 % masked) for 2 steps", 1),
        ([before], "MLM (20 % masked, predicted from the position before) for 1 steps", 0),
        (mixed, "CLM in 25 % of the windows, MLM (30 % masked at first, 15 % at last) in the others for 3 steps", 0.75),
        ([clm, mlm] * 3, "CLM and MLM in 6 phases, 3 of 6 steps CLM", 3),
    ):
        phases = record(*steps)
        assert describe(phases) == words and sum(its["steps"] for its in phases) == len(steps)
        assert sum(its["clm_steps"] for its in phases) == clm_steps
    assert predicts_from({"phases": record(before, clm), "settings": {}}) == "before"
    assert predicts_from({"phases": record(clm), "settings": {}}) == "mask"
