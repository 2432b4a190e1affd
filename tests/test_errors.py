"""Output that fails, or that its encoding cannot show, cannot stop a command."""

import pytest

from helpers import BROKEN, TINY

SHORT = "--max_steps=2 --switch_step=1 --warmup_steps=0 --decay_steps=0".split()
FINETUNE = "--task=embedded-sc --test_examples=9 --eval_examples=9"
COMMANDS = {  # the script: (its arguments, the last file that it makes)
    "train.py": ([*TINY, *SHORT, "--data={data}", "--out_dir={out}"], "ckpt-2.pt"),
    "finetune.py": ([*SHORT[:1], *FINETUNE.split(), "--init_from={encoder}", "--out_dir={out}"], "result.json"),
    "data.prepare": ("--source={texts} --val_fraction=0.2 --out={out}".split(), "meta.json"),
    "checkpoint.py": ("export {encoder} {out} --as=llama".split(), "README.md"),
}
ASCII = dict(PYTHONIOENCODING="ascii", SHOW="1")
WAYS = [*(dict(BROKEN_OUTPUT=how) for how in BROKEN), ASCII]
CASES = [*(("train.py", way) for way in WAYS), *((script, ASCII) for script in [*COMMANDS][1:])]


@pytest.mark.parametrize("script, environment", [*CASES, *zip([*COMMANDS][1:], WAYS)])
def test_no_output_stops_a_command(run, data_dir, encoder, tmp_path, script, environment):
    """As with `2>&-`, `2>&1 | head -1`, or a full disk under the log. Names here are not ASCII."""
    if script == "checkpoint.py":
        pytest.importorskip("safetensors"), pytest.importorskip("tokenizers")
    texts, out = tmp_path / "te\u0301xts.txt", tmp_path / "\N{GRINNING FACE}"
    texts.write_text("\n\n\n".join(f"Text number {i} of many." for i in range(100)))
    args, result = COMMANDS[script]
    args = [arg.format(data=data_dir, encoder=encoder, texts=texts, out=out) for arg in args]
    code, text = run(args, script, **environment)
    assert code == 0 and (out / result).exists() and "Traceback" not in text and "codec" not in text, text


def test_a_name_that_is_not_utf_8_is_refused_before_any_work(run, encoder, tmp_path):
    code, text = run(["export", encoder, tmp_path / "\udcff", "--as=llama"], "checkpoint.py")
    assert code == 1 and "is not UTF-8" in text and "Traceback" not in text, text
    assert not (tmp_path / "\udcff").exists()
