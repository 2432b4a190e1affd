"""Frozen values: the batches of a fixed stream, and the log of a short run.

Every published number depends on the batches. A change of these values changes all runs, so it must be on purpose.
"""

import hashlib
import json

import numpy as np
import pytest

from data.loader import Batches
from data.objective import CLM, MLM
from data.prepare import prepare
from data.tokenizer_files import read_tokenizer
from data.validation import HiddenTokens, NextToken
from helpers import ROOT, metrics, succeed

# Checksums of batches for each window_split, and both validation losses at the start, 20 training losses, some of them
# with validation losses.
GOLDEN = json.loads((ROOT / "tests/data/golden.json").read_text())
OBJECTIVES = {  # validation has those that come with the project
    "CLM": (CLM(), NextToken()),
    "MLM": (MLM(0.4), HiddenTokens()),
    "80/10/10": (MLM(0.15, proportions=(0.8, 0.1, 0.1)),),
    "MNTP": (MLM(0.2, "before"),),
    "MNTP4": (MLM(0.4, "before"), HiddenTokens("before")),
}


class Stream:
    """10,000 tokens that no library's random numbers make, in documents of 1 to 96 tokens."""

    def __init__(self, tokenizer):
        i = np.arange(10_000)
        self.tokens = i * i * 31 % 4093
        self.tokens[i * i % 97 == 1] = tokenizer.eos_id

    def __len__(self):
        return len(self.tokens)

    def windows(self, index, T):
        return self.tokens[index[:, None] * T + np.arange(T)]


@pytest.mark.parametrize("name, objectives", OBJECTIVES.items())
def test_batches(name, objectives):
    tokenizer = read_tokenizer("embedded")
    for split, expected in GOLDEN["batches"][name].items():
        for objective in objectives:
            checksum = hashlib.sha256()
            for draws in [1000], [700, 300]:
                batches = Batches([Stream(tokenizer)] * len(draws), tokenizer, 3, 64, 12, split, draws)
                for step in 0, 1234:
                    for key, x in sorted(batches.batch(step, objective).items()):
                        checksum.update(f"{key} {x.dtype} {tuple(x.shape)}".encode() + x.numpy().tobytes())
            assert checksum.hexdigest()[:16] == expected, (objective, split)
        assert len({(objective.name, objective.causal) for objective in objectives}) == 1


def test_the_log_of_a_short_run(run, tmp_path):
    """The demo's recipe with 1,024 tokens a step, in fp32: each loss to 1e-4, as processors differ in their sums."""
    schedule = "--max_steps=20 --switch_step=8 --warmup_steps=4 --decay_steps=6 --eval_interval=20 --log_interval=1"
    args = f"{schedule} --global_batch_tokens=1024 --eval_windows=16 --dtype=float32 --data={tmp_path / 'data'}"
    prepare("embedded", tmp_path / "data", val_fraction=0.05)
    succeed([run([*args.split(), f"--out_dir={tmp_path / 'run'}"], OMP_NUM_THREADS="1")])
    lines = metrics(tmp_path / "run")
    losses = [line[key] for line in lines for key in ("loss", "val_clm_loss", "val_mlm_loss") if key in line]
    assert losses == pytest.approx(GOLDEN["losses"], abs=1e-4)
    assert [line["phase"] for line in lines] == ["clm"] * 9 + ["mlm"] * 12
