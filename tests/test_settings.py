"""One table of wrong settings for all scripts: each stops a run before any work, with all that is wrong.

wrong_settings.txt has a command, and below it what the message says of each of its mistakes.
"""

import re

import pytest

from helpers import ROOT

CASES = (ROOT / "tests/wrong_settings.txt").read_text().replace("\\\n", "").strip().split("\n\n")


@pytest.mark.parametrize("case", CASES, ids=[f"{case:.60}" for case in CASES])
def test_wrong_settings_are_told_before_any_work(undisturbed, run, encoder, tmp_path, case):
    tiny, reference = undisturbed
    (tmp_path / "odd.csv").write_text("text;label\nx;1\n")
    for folder, file in ("model", "config.json"), ("result", "result.json"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).touch()
    case = case.format(tmp=tmp_path, encoder=encoder, ckpt=reference / "ckpt-20.pt", long="x" * 300)
    command, *problems = case.split("\n    ")
    script, *args = command.split()
    before = [*tiny, f"--out_dir={tmp_path / 'run'}"] if script == "train.py" else [f"--out_dir={tmp_path / 'run'}"]
    code, text = run([*before, *args], script, LOCAL_RANK="99", WORLD_SIZE="100" if "cuda" in case else "1")
    assert code in (1, 2) and "Traceback" not in text, text
    for problem in problems:
        assert problem in text
    assert code == 1 or len(re.findall(r"^  \d+\. ", text, re.M)) == len(problems), text
    assert not (tmp_path / "run").exists()
