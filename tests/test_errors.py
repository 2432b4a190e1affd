"""Output that fails cannot stop a command."""

import ast

import pytest

from helpers import BROKEN, ROOT, TINY

SHORT = "--max_steps=2 --switch_step=1 --warmup_steps=0 --decay_steps=0".split()
FINETUNE = "--task=embedded-sc --test_examples=9 --eval_examples=9"
COMMANDS = {  # the script: (its arguments, the last file that it makes)
    "train.py": ([*TINY, *SHORT, "--data={data}", "--out_dir={out}"], "ckpt-2.pt"),
    "finetune.py": ([*SHORT[:1], *FINETUNE.split(), "--init_from={encoder}", "--out_dir={out}"], "result.json"),
    "data.prepare": ("--source={texts} --val_fraction=0.2 --out={out}".split(), "meta.json"),
    "checkpoint.py": ("export {encoder} {out} --as=llama".split(), "README.md"),
}


@pytest.fixture
def command(data_dir, encoder, tmp_path):
    """command(script) -> its arguments, out_dir, and the last file that it makes there. Names are not ASCII."""

    def one(script):
        if script == "checkpoint.py":
            pytest.importorskip("safetensors"), pytest.importorskip("tokenizers")
        texts, out = tmp_path / "te\u0301xts.txt", tmp_path / "\N{GRINNING FACE}"
        texts.write_text("\n\n\n".join(f"Text number {i} of many." for i in range(100)))
        args, result = COMMANDS[script]
        return [arg.format(data=data_dir, encoder=encoder, texts=texts, out=out) for arg in args], out, out / result

    return one


@pytest.mark.parametrize("script, how", [*(("train.py", how) for how in BROKEN), *zip([*COMMANDS][1:], BROKEN)])
def test_broken_output_stops_nothing(run, command, script, how):
    """As with `2>&-`, `2>&1 | head -1`, a terminal that is gone, or a full disk under the log."""
    args, _, result = command(script)
    code, text = run(args, script, BROKEN_OUTPUT=how)
    assert code == 0 and result.exists() and "Traceback" not in text, text


@pytest.mark.parametrize("script", COMMANDS)
def test_no_encoding_of_the_output_stops_anything(run, command, tmp_path, script):
    """What it lacks is printed as an escape. A name that is not UTF-8 is refused before any work."""
    args, out, result = command(script)
    code, text = run(args, script, PYTHONIOENCODING="ascii", SHOW="1")
    assert code == 0 and result.exists() and "Traceback" not in text and "codec" not in text, text
    for odd in args:
        if str(out) in odd:
            code, text = run([*args, odd.replace(str(out), f"{out}\udcff")], script)
            assert code == 1 and "is not UTF-8" in text and "Traceback" not in text, text
    assert not (tmp_path / "\N{GRINNING FACE}\udcff").exists()
    if script == "train.py":
        for args in [f"--ckpt={out}", "--prompt=\u65e5"], [str(out)]:
            code, text = run(args, "eval.sample" if len(args) > 1 else "eval.plot", PYTHONIOENCODING="ascii")
            assert code == 0 and ("\\u65e5" in text or "loss.png" in text), text


def test_an_older_python_is_named_before_anything_else():
    """So scripts, and what they import before errors.py, have no newer syntax."""
    scripts = "train.py finetune.py checkpoint.py data/prepare.py eval/plot.py eval/sample.py".split()
    for path in [*map(ROOT.joinpath, ["errors.py", "configurator.py", *scripts]), *ROOT.glob("eval/*/__main__.py")]:
        ast.parse(path.read_text(), feature_version=(3, 8))
    code = (ROOT / "errors.py").read_text().replace("(3, 10)", "(4, 0)")
    with pytest.raises(SystemExit, match=r"^Python 3\S+ is too old: make the environment with"):
        exec(code, {"__name__": "errors"})
