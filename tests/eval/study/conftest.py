"""What the tests of studies share: a miniature data set and plans."""

import random

import pytest
from helpers import ROOT, WORDS

import configurator
from eval.study.plan import Plan


@pytest.fixture(scope="session")
def tasks_dir(tmp_path_factory):
    """A folder with a miniature data set under the name sst2."""
    folder, rng = tmp_path_factory.mktemp("tasks"), random.Random(0)
    (folder / "sst2").mkdir()
    for file in ("train.tsv", "dev.tsv"):
        rows = "".join(f"{' '.join(rng.choices(WORDS, k=8))}\t{rng.randint(0, 1)}\n" for _ in range(64))
        (folder / "sst2" / file).write_text(f"sentence\tlabel\n{rows}")
    return folder


@pytest.fixture(scope="session")
def plan_of():
    """plan_of(*config files, setting=value, ...) -> the Plan of a study; without files of two rows, mlm and clm."""

    def plan(*args, **settings):
        rows = (("clm", "", "--switch_step=650"), ("mlm", "", "--switch_step=0"))
        settings = settings if args else dict(runs=rows, tasks="sst2", rates="1e-3") | settings
        words = [f"--{name}={value}" for name, value in settings.items()]
        return Plan(configurator.load(ROOT / "eval/study/__main__.py", [*args, *words]))

    return plan
