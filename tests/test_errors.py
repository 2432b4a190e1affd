"""Output that fails cannot stop a command."""

import pytest

from helpers import BROKEN, TINY


@pytest.mark.parametrize("how, streams", [*zip(BROKEN, ("2", "12", "12"), strict=True)])
@pytest.mark.parametrize("script", ["train.py", "finetune.py", "data.prepare"])
def test_broken_output_stops_nothing(run, data_dir, encoder, tmp_path, script, how, streams):
    """As with `2>&-`, `2>&1 | head -1`, a terminal that is gone, or a full disk under the log."""
    (tmp_path / "texts.txt").write_text("\n\n\n".join(f"Text number {i} of many." for i in range(100)))
    args, result = {
        "train.py": ([*TINY, f"--data={data_dir}", f"--out_dir={tmp_path}/out"], "ckpt-20.pt"),
        "finetune.py": (
            [f"--init_from={encoder}", "--task=embedded-sc", "--max_steps=2", f"--out_dir={tmp_path}/out"],
            "result.json",
        ),
        "data.prepare": (
            [f"--source={tmp_path}/texts.txt", "--val_fraction=0.2", f"--out={tmp_path}/out"],
            "meta.json",
        ),
    }[script]
    code, text = run(args, script, BROKEN_OUTPUT=how, BROKEN_STREAMS=streams)
    assert code == 0 and (tmp_path / "out" / result).exists(), text
