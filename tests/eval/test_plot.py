"""The figure and the summary of a run."""

import importlib.util
import json

import pytest

from errors import DataError
from eval.plot import plot_run, read_metrics, summary


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


@pytest.mark.parametrize("line", [b"no", b"[1]", b'{"loss": 1}', b"[" * 100_000, b'{"step": "x"}', b"\xff", b""])
def test_a_line_that_is_none_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match="metrics.jsonl, line 2: .*expected an object with a step"):
        read_metrics(tmp_path)
