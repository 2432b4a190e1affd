"""Output that fails cannot stop a command."""

import sys

import pytest

from errors import progress
from helpers import BROKEN, TINY


@pytest.mark.parametrize("how", BROKEN)
@pytest.mark.parametrize("script", ["train.py", "finetune.py", "data.prepare"])
def test_broken_output_stops_nothing(run, data_dir, encoder, tmp_path, script, how):
    """As with `2>&-`, `2>&1 | head -1`, a terminal that is gone, or a full disk under the log."""
    (tmp_path / "texts.txt").write_text("\n\n\n".join(f"Text number {i} of many." for i in range(100)))
    out = tmp_path / "out"
    args, result = {
        "train.py": ([*TINY, f"--data={data_dir}", f"--out_dir={out}"], "ckpt-20.pt"),
        "finetune.py": (
            [f"--init_from={encoder}", "--task=embedded-sc", "--max_steps=2", f"--out_dir={out}"],
            "result.json",
        ),
        "data.prepare": ([f"--source={tmp_path}/texts.txt", "--val_fraction=0.2", f"--out={out}"], "meta.json"),
    }[script]
    code, text = run(args, script, BROKEN_OUTPUT=how)
    assert code == 0 and (out / result).exists(), text


def test_a_log_gets_lines_instead_of_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", sys.stdout)  # as they were, after the test
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    bar = progress(total=3, desc="three", unit="steps")
    bar.mininterval = bar.delay = bar.start_t = bar.last_print_t = 0  # a minute has passed
    bar.update()
    bar.write("a line")
    bar.close()
    out, err = capsys.readouterr()
    assert out == "a line\n" and err.count("\n") == 1 and err.startswith("three 1/3 steps, ")
