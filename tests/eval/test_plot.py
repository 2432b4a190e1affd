"""The figure and the summary of a run."""

import json

import pytest

from errors import DataError
from eval import plot
from eval.plot import plot_run, read_metrics, summary


def write_log(folder, phases, **more):
    """Write the log of a run with a line for each of phases, all with validation losses."""
    lines = [dict(step=i, phase=phase, loss=3.0, val_clm_loss=i, val_mlm_loss=i) for i, phase in enumerate(phases)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line | more) + "\n" for line in lines))


CLM, MLM, MIXED = "clm", "mlm", "clm + mlm"


def test_the_summary_goes_by_the_phases_of_the_log(tmp_path):
    """With more than four of them it has the start and the end only."""
    for phases, rows in (
        ([CLM, CLM, MIXED, MLM], ["start, step 0", "switch, step 1", "switch, step 2", "end, step 3"]),
        ([CLM, CLM, MLM, CLM, MLM, CLM], ["start, step 0", "end, step 5"]),
    ):
        write_log(tmp_path, phases)
        assert [line[:20].strip() for line in summary(read_metrics(tmp_path)).splitlines()[1:]] == rows


def test_the_figure_of_a_mixed_phase_has_its_parts(tmp_path, monkeypatch):
    write_log(tmp_path, [CLM, CLM, MIXED, MIXED], clm_loss=2.5, mlm_loss=4.0)
    figures = []
    monkeypatch.setattr(plot, "save_figure", lambda figure, path: figures.append(figure))
    plot_run(tmp_path)
    lines = {line.get_label(): [*line.get_ydata()] for line in figures[0].axes[0].lines}
    assert lines["training, CLM + MLM"][2:] == [3.0, 3.0] and lines["training, MLM"][2:] == [4.0, 4.0]
    assert lines["training, CLM"] == [3.0, 3.0, 2.5, 2.5]
    assert [text.get_text() for text in figures[0].axes[0].texts] == [" to CLM + MLM"]
    write_log(tmp_path, [CLM, MLM] * 3)  # alternating phases have no marks
    plot_run(tmp_path)
    assert len(figures[1].axes[0].texts) == 0


@pytest.mark.parametrize("line", [b"no", b"[1]", b'{"loss": 1}', b"[" * 100_000, b"\xff"])
def test_a_line_that_is_none_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match="metrics.jsonl, line 2: .*expected an object with a step"):
        read_metrics(tmp_path)


def test_what_cannot_be_drawn(run, tmp_path):
    """A folder is where the figure belongs; the log is of a fine-tuning."""
    write_log(tmp_path, [CLM, MLM])
    (tmp_path / "loss.png").mkdir()
    code, text = run([str(tmp_path)], "eval.plot")
    assert code == 1 and "Is a directory" in text and "log" not in text and "Traceback" not in text, text
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    code, text = run([str(tmp_path)], "eval.plot")
    assert code == 1 and "has no log of train.py: KeyError: 'phase'" in text, text
