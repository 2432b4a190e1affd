"""The rules of docs/records.md, as check.py checks them, and the numbers on the page of findings."""

import ast
import csv
import json
import re
import subprocess
import sys
import tempfile
import zipfile

import pytest
from helpers import ROOT, Run

CHECK = ROOT / "docs/results/records/check.py"
RECORD_2 = zipfile.ZipFile(ROOT / "docs/results/records/2-embedding-rate.zip")
MODEL = json.loads(RECORD_2.read("runs/record-seed-120/config.json"))["model"]  # 1,836,160 parameters
FINGERPRINT = "d7c569101252a1efd86f390ac45a4ac5e970f27c527cad086fdf88fcc41d254e"
SETTINGS = dict(max_steps=3000, global_batch_tokens=2048, eval_windows=128, micro_batch=32)
SETTINGS |= dict(init_from="", branch_from="")


def write_study(folder, loss=3.37, score=67.0, seeds=(200, 201, 202, 203, 204), without="",
                rates=(0.001, 0.002, 0.003), finetune_seeds=2, **changes):  # fmt: skip
    """Write what the check reads of a study of five seeds."""
    rows = []
    for seed in seeds:
        run = folder / "runs" / f"record-seed-{seed}"
        run.mkdir(parents=True)
        settings = SETTINGS | {"seed": seed} | {name: changes[name] for name in changes if name in SETTINGS}
        shape = MODEL | {name: changes[name] for name in changes if name in MODEL}
        facts = dict(parameters=changes.get("parameters", 1_836_160), model=shape)
        facts |= dict(settings=settings, data_fingerprint=changes.get("data_fingerprint", FINGERPRINT))
        (run / "config.json").write_text(json.dumps(facts))
        last = dict(step=changes.get("step", 3000), flops=changes.get("flops", 3.3e13))
        lines = [{"step": 2980, "flops": 3.2e13}, last | dict(val_mlm_loss=loss)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for task in {"conll2003", "scifact"} - {without}:
            best = dict(pretraining_seed=seed, task=task, lr=0.001, seed=1, test=score, chosen=True)
            rows += [best | dict(lr=lr, test=99.0, chosen=False) for lr in rates[1:]]  # validation did not choose them
            rows += [best | dict(seed=number) for number in range(1, 1 + finetune_seeds)]
    (folder / "report").mkdir()
    with open(folder / "report/results.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return folder


def check(*folders, script=CHECK):
    with tempfile.NamedTemporaryFile() as output:
        return Run(folders, output.name, script).wait()


def test_a_record_is_accepted_and_what_is_kept_can_be_checked_again(tmp_path):
    code, said = check(write_study(tmp_path / "study"), tmp_path / "kept.zip")
    assert code == 0, said
    assert "steps 3000" in said and "score 67.00" in said and "flops 3.3e+13, must be below 6.14e+13" in said
    assert check(tmp_path / "kept.zip") == (0, said)
    assert "is not replaced" in check(tmp_path / "study", tmp_path / "kept.zip")[1]
    assert "must be a new file that ends in .zip" in check(tmp_path / "study", tmp_path / "folder")[1]
    assert "no such study" in check(tmp_path / "nothing")[1]


RULES = (ROOT / "tests/record_rules.txt").read_text().splitlines()[1:]


@pytest.mark.parametrize("rule", RULES)
def test_what_breaks_a_rule(tmp_path, rule):
    change, said = rule.split("; ")
    name, value = change.split(" = ")
    code, output = check(write_study(tmp_path, **{name: ast.literal_eval(value)}))
    assert code != 0 and said.replace("\\n", "\n") in output


def test_records_are_compared_with_those_before(tmp_path):
    """The check looks for other records beside itself. A later one changes nothing for those before."""
    (tmp_path / "check.py").write_text(CHECK.read_text())
    first = write_study(tmp_path / "first")
    assert check(first, tmp_path / "1-first.zip", script=tmp_path / "check.py")[0] == 0
    new = write_study(tmp_path / "new", seeds=(204, 205, 206, 207, 208))
    second = write_study(tmp_path / "second", seeds=(300, 301, 302, 303, 304), flops=3.2e13)
    assert check(second, tmp_path / "2-second.zip", script=tmp_path / "check.py")[0] == 0

    def said(*args):
        return check(*args, script=tmp_path / "check.py")[1]

    assert "1-first has used [204]" in said(new)
    assert "of row 0" in said(tmp_path / "1-first.zip") and "not a record" not in said(tmp_path / "1-first.zip")


@pytest.mark.slow
def test_the_page_of_findings_has_the_numbers_that_the_scripts_print():
    page = (ROOT / "docs/findings.md").read_text()
    said = zipfile.ZipFile(ROOT / "docs/results/early/continued.zip").read("comparisons.csv").decode()
    for command in ("claims.py", *map("studies.py ".__add__, ("cause", "dose", "visible", "intervention"))):
        script, *study = command.split()
        command = [sys.executable, ROOT / "docs/results" / script, *study]
        said += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    quoted = {*re.findall(r"-?\d+\.\d ± \d+\.\d", page)}
    missing = {interval for interval in quoted if not re.search(rf"(?<![0-9.]){re.escape(interval)}(?![0-9])", said)}
    assert len(quoted) == 28 and missing == {"3.9 ± 3.7"}, missing
    assert "clm-then-mlm-10,clm,3.94003,0.25741,7.62265,0.0440527,0.132158" in said
    for number in ("5.4 ± 2.5", "1.3 ± 3.1", "10.7 ± 8.2", "-7.4 ± 2.8", "8.7 ± 5.6", "1.3 ± 1.4"):
        assert number in said and number.removeprefix("-") in page
    assert re.findall(r"retrieval: ([+-]\S+) at (\d+)", said) == [("+5.04", "62"), ("-0.25", "113"), ("+0.33", "215")]
    assert "5.0, -0.3 and 0.3 points at 62, 113 and 215 tokens" in page
    assert re.findall("deviation (.*?) over .*?, (.*?) without", said)[2:] == [("2.1", "2.3"), ("4.4", "1.6")]
