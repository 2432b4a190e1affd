"""The figure and the summary of a run."""

import importlib.util
import json

import pytest

from eval.plot import plot_run, read_metrics, summary


@pytest.fixture
def out_dir(tmp_path):
    """The folder of a run of 6 steps with a switch at step 4."""
    lines = [{"step": 0, "phase": "clm", "val_clm_loss": 9.0, "val_mlm_loss": 9.5}]
    lines += [{"step": step, "phase": "clm" if step <= 4 else "mlm", "loss": 9.0 - step} for step in range(1, 7)]
    lines[4] |= {"val_clm_loss": 5.25, "val_mlm_loss": 7.0}
    lines[6] |= {"val_clm_loss": 6.0, "val_mlm_loss": 3.125}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def test_summary(out_dir):
    numbers = [line.split()[-3:] for line in summary(out_dir, switch_step=4).splitlines()[1:]]
    assert numbers == [["0", "9.000", "9.500"], ["4", "5.250", "7.000"], ["6", "6.000", "3.125"]]
    assert len(summary(out_dir, switch_step=0).splitlines()) == 4 and len(read_metrics(out_dir)) == 7


@pytest.mark.skipif(not importlib.util.find_spec("matplotlib"), reason="needs matplotlib")
def test_plot_run(out_dir):
    assert plot_run(out_dir) == out_dir / "loss.png"
    assert (out_dir / "loss.png").read_bytes().startswith(b"\x89PNG")
