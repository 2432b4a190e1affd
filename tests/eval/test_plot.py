"""The figure and the summary of a run."""

import json

import numpy as np

from eval import plot
from eval.plot import plot_run, read_metrics, summary

CLM, MLM, MIXED = "clm", "mlm", "clm + mlm"


def write_log(folder, phases):
    """Write the log of a run with a line for each of phases, all with validation losses."""
    lines = [dict(step=i, phase=phase, loss=3.0, val_clm_loss=i, val_mlm_loss=i) for i, phase in enumerate(phases)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_summary_goes_by_the_phases_of_the_log(tmp_path):
    for phases, rows in (
        ([CLM, CLM, MIXED, MLM], ["start, step 0", "switch, step 1", "switch, step 2", "end, step 3"]),
        ([CLM, CLM, MLM, CLM, MLM, CLM], ["start, step 0", "end, step 5"]),
    ):
        write_log(tmp_path, phases)
        assert [line[:20].strip() for line in summary(read_metrics(tmp_path)).splitlines()[1:]] == rows


def test_a_phase_is_a_curve_with_gaps_where_the_run_was_in_another(tmp_path, monkeypatch):
    write_log(tmp_path, [CLM, MIXED, CLM, MIXED])
    figures, new_figure = [], plot.new_figure
    monkeypatch.setattr(plot, "new_figure", lambda *size: figures.append(new_figure(*size)) or figures[0])
    plot_run(tmp_path)
    lines = {line.get_label(): [*line.get_ydata()] for line in figures[0].axes[0].lines}
    assert lines["training, CLM + MLM"][1::2] == lines["training, CLM"][::2] == [3.0, 3.0]
    assert np.isnan(lines["training, CLM"][1::2]).all() and lines["validation, MLM"] == [0, 1, 2, 3]
