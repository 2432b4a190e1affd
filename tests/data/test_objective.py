"""What the windows of a step train, and the record of what a run has trained."""

import math

import numpy as np
import pytest

from data import validation
from data.loader import Windows
from data.objective import (
    CLM, MLM, by_objective, clm_steps, describe, is_decoder, largest_mask_ratio, micro_batches, names_of, phase_of,
    predicts_from, title,
)  # fmt: skip
from data.tokenizer import Tokenizer
from errors import DataError
from helpers import record


def of_ranks(objective, world_size, micro_batch, n_windows=24):
    """The micro-batches of all processes in a step."""
    groups = by_objective(objective, None, n_windows, step=7)
    return [micro_batches(groups, micro_batch, rank, world_size) for rank in range(world_size)]


def six_of_clm(step, window, n_windows, cfg):
    assert (step, n_windows) == (7, 24)
    return CLM() if window < 6 else MLM()


@pytest.mark.parametrize("world_size, micro_batch", [(1, 24), (1, 5), (2, 4), (3, 1), (5, 2), (6, 100)])
def test_every_window_once_and_each_micro_batch_of_one_objective(world_size, micro_batch):
    """Every process has the same number of micro-batches, as few as there can be: with shards they work together."""
    ranks = of_ranks(six_of_clm, world_size, micro_batch)
    windows = [(window, kind) for its in ranks for kind, its, _ in its for window in its]
    assert sorted(windows, key=lambda pair: pair[0]) == [(i, CLM() if i < 6 else MLM()) for i in range(24)]
    for kind, n in (CLM(), 6), (MLM(), 18):
        for of_rank in ranks:
            sizes = [len(its) for what, its, counts in of_rank if what == kind and counts]
            assert len(sizes) == math.ceil(n / world_size / micro_batch)
            assert max(sizes) <= micro_batch and max(sizes) - min(sizes) <= 1 <= min(sizes)
    assert phase_of(by_objective(six_of_clm, None, 24, 7)) == "clm + mlm"


def test_windows_may_be_left_out_but_not_all():
    first_two = lambda step, window, n_windows, cfg: MLM() if window < 2 else None
    assert of_ranks(first_two, 3, 4) == [[(MLM(), [0], True)], [(MLM(), [1], True)], [(MLM(), [0], False)]]
    with pytest.raises(DataError, match="it must leave at least one"):
        of_ranks(lambda *_: None, 1, 4)


def test_the_record_of_phases():
    clm, mlm = {CLM(): range(4)}, {MLM(): range(4)}
    before = {MLM(0.2, "before"): range(4)}
    mixed = [{CLM(): [0], MLM(ratio): [1, 2, 3]} for ratio in (0.3, 0.2, 0.15)]
    two = {MLM(0.3): range(3), MLM(0.15): [3]}
    MLM40 = "MLM (40 % masked) for 1 steps"
    bert = {MLM(0.15, proportions=(0.8, 0.1, 0.1)): range(4)}
    for steps, words, clm_total, ratio in (
        ([clm, mlm, mlm], "CLM for 1 steps, then MLM (40 % masked) for 2 steps", 1, 0.4),
        ([before], "MNTP (20 % masked) for 1 steps", 0, 0.2),
        ([bert], "MLM (15 % masked, of these 80/10/10) for 1 steps", 0, 0.15),
        (
            mixed,
            "CLM in 25 % of the windows and MLM (30 % masked at first, 15 % masked at last) in 75 % of the windows"
            " for 3 steps",
            0.75,
            0.3,
        ),
        ([two, two], "MLM (30 % masked and 15 % masked) for 2 steps", 0, 0.3),
        ([clm, mlm] * 3, ", then ".join([*["CLM for 1 steps", MLM40] * 2, "2 more phases"]), 3, 0.4),
    ):
        phases = record(*steps)
        assert describe(phases) == words and sum(its["steps"] for its in phases) == len(steps)
        assert (clm_steps(phases), largest_mask_ratio(phases)) == (clm_total, ratio)
    assert predicts_from(record(before, clm)) == "before" and predicts_from(record(clm)) == "mask"
    assert is_decoder(record(mlm, clm)) and not is_decoder(record(clm, mlm)) and not is_decoder(record(mixed[0]))
    assert names_of(mixed[0]) == ["clm", "mlm"] and title("clm + prefix lm, spans") == "CLM + prefix LM, spans"


def test_validation_is_that_of_clm_and_mlm_as_they_come_with_the_project():
    tokenizer = Tokenizer.load("embedded")
    tokens = np.random.default_rng(0).integers(0, 4096, (5, 64))  # with a few special tokens
    tokens[:, ::9] = tokenizer.eos_id
    position = np.arange(64)
    start, end = np.broadcast_to(position // 32 * 32, (5, 64)), np.broadcast_to(position // 32 * 32 + 32, (5, 64))
    windows = Windows(tokens, position, start, end, np.arange(5)[:, None], 0, tokenizer)
    for predict_from in ("mask", "before"):
        for pinned, objective in zip(validation.objectives(predict_from), (CLM(), MLM(0.4, predict_from))):
            assert (pinned.name, pinned.causal) == (objective.name, objective.causal)
            assert pinned.n_predicted(64) == objective.n_predicted(64)
            for x, y in zip(pinned.examples(windows), objective.examples(windows)):
                assert (x == y).all()
