"""The figure and the summary of a run."""

import importlib.util
import json

import time

import pytest

from errors import DataError
from eval.plot import POINTS, plot_run, read_metrics, summary, thin


def test_summary_and_figure(tmp_path):
    """Of a run of 6 steps with a switch at step 4."""
    lines = [{"step": 0, "phase": "clm", "val_clm_loss": 9.0, "val_mlm_loss": 9.5}]
    lines += [{"step": step, "phase": "clm" if step <= 4 else "mlm", "loss": 9.0 - step} for step in range(1, 7)]
    lines[4] |= {"val_clm_loss": 5.25, "val_mlm_loss": 7.0}
    lines[6] |= {"val_clm_loss": 6.0, "val_mlm_loss": 3.125}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_metrics(tmp_path) == lines
    numbers = [line.split()[-3:] for line in summary(tmp_path, switch_step=4).splitlines()[1:]]
    assert numbers == [["0", "9.000", "9.500"], ["4", "5.250", "7.000"], ["6", "6.000", "3.125"]]
    if importlib.util.find_spec("matplotlib"):
        assert plot_run(tmp_path).read_bytes().startswith(b"\x89PNG")
    else:
        assert plot_run(tmp_path) is None


def test_a_long_log_is_thinned_and_read_seldom(tmp_path):
    pytest.importorskip("matplotlib")
    assert len(thin(range(1_000_000))) <= POINTS and thin(range(POINTS)) == range(POINTS)
    line = {"step": 0, "phase": "clm", "loss": 5.0, "val_clm_loss": 9.0, "val_mlm_loss": 9.0}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line | {"step": n}) + "\n" for n in range(20_000)))
    started = time.monotonic()
    figure = plot_run(tmp_path)
    took = time.monotonic() - started
    figure.unlink()
    for _ in range(50):  # after each of 50 evaluations
        plot_run(tmp_path, if_quick=True)
    assert not figure.exists() and time.monotonic() - started < 2 * took + 1
    assert plot_run(tmp_path) == figure and figure.exists()


@pytest.mark.parametrize("line", [b"no", b"[1]", b'{"loss": 1}', b"[" * 100_000, b'{"step": "x"}', b"\xff", b""])
def test_a_line_that_is_none_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match="metrics.jsonl, line 2: .*expected an object with a step"):
        read_metrics(tmp_path)
