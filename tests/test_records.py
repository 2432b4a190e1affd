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
from helpers import ROOT, Run, rows_of

CHECK = ROOT / "docs/results/records/check.py"
MODEL = dict(vocab_size=8192, n_layer=4, n_head=2, n_kv_head=1, d_model=128, d_ff=384, seq_len=128)
FINGERPRINT = "7b77aabde7c31921ef28969cdc2fde4545cbaf0e5a53dd9f40f4718ad7bd3592"
SETTINGS = dict(max_steps=3000, global_batch_tokens=2048, eval_windows=128, micro_batch=32)
SETTINGS |= dict(init_from="", branch_from="")


def write_study(folder, loss=3.37, score=67.0, seeds=(5, 6, 7, 8, 9), without="",
                rates=(0.001, 0.002, 0.004), finetune_seeds=2, **changes):  # fmt: skip
    """Write what the check reads of a study of five seeds. Their losses differ by 0.01, their scores by 1."""
    rows = []
    for place, seed in enumerate(seeds, -2):
        run = folder / "runs" / f"record-seed-{seed}"
        run.mkdir(parents=True)
        settings = SETTINGS | {"seed": seed} | {name: changes[name] for name in changes if name in SETTINGS}
        shape = MODEL | {name: changes[name] for name in changes if name in MODEL}
        facts = dict(settings=settings, model=shape, data_fingerprint=changes.get("data_fingerprint", FINGERPRINT))
        facts["parameters"] = changes.get("parameters", 3_081_344 if "d_ff" in changes else 2_884_736)
        (run / "config.json").write_text(json.dumps(facts))
        last = dict(step=changes.get("step", 3000), flops=changes.get("flops", 3.3e13), tokens=6_144_000)
        lines = [{"step": 2980, "flops": 3.2e13}, last | dict(val_mlm_loss=loss + place / 100)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for task in {"conll2003", "scifact"} - {without}:
            best = dict(pretraining_seed=seed, task=task, lr=0.001, seed=1, test=score + place, chosen=True)
            best |= dict(step=changes.get("tuned_step", 3000), model=place * changes.get("rows", 0))
            best["validation"] = changes.get("validation", 70)
            rows += [best | dict(lr=lr, test=99.0, chosen=False, validation=69) for lr in rates[1:]]  # not chosen
            rows += [best | dict(seed=number) for number in range(1, 1 + finetune_seeds)]
    (folder / "report").mkdir()
    with open(folder / "report/results.csv", "w", newline="") as file:
        csv.writer(file).writerows([rows[0], *(row.values() for row in rows)])
    return folder


def check(*folders, script=CHECK):
    with tempfile.NamedTemporaryFile() as output:
        return Run(folders, output.name, script).wait()


@pytest.fixture
def script(tmp_path):
    """A check.py that has one record beside it: row 0, whose target is a loss of 3.40 - 2.33 * 0.0158 / sqrt(5)."""
    script = tmp_path / "records/check.py"
    script.parent.mkdir()
    script.write_text(CHECK.read_text())
    row_0 = write_study(tmp_path / "row-0", loss=3.40, score=66, seeds=range(5), flops=9e13)
    assert check(row_0, script.parent / "0-pure-mlm.zip", script=script)[0] == 0
    return script


def test_a_record_is_accepted_and_what_is_kept_can_be_checked_again(tmp_path, script):
    study, kept = write_study(tmp_path / "study"), script.parent / "1-first.zip"
    code, said = check(study, kept, script=script)
    assert code == 0, said
    assert said.splitlines() == [
        "flops 3.3e+13, loss 3.3700, score 67.00",
        "for a record: flops below 9e+13, loss at most 3.3835, score 64.04",
    ]
    assert check(kept, script=script) == (0, said)
    assert "are not replaced" in check(study, kept)[1]
    assert "must be a new file that ends in .zip" in check(study, tmp_path / "folder")[1]
    assert "no such study" in check(tmp_path / "nothing")[1]
    new = write_study(tmp_path / "new", seeds=(9, 10, 11, 12, 13))
    assert "1-first has used [9]" in check(new, script=script)[1]
    later = write_study(tmp_path / "later", score=65.03, seeds=range(20, 25), flops=3.2e13)
    assert "score 65.04\nnot a record" in check(later, script=script)[1]  # it must be at least that of record 1


@pytest.mark.parametrize("name, value, said", rows_of("rules of a record"))
def test_what_breaks_a_rule(tmp_path, script, name, value, said):
    code, output = check(write_study(tmp_path / "study", **{name: ast.literal_eval(value)}), script=script)
    assert code != 0 and said in output


@pytest.mark.slow
def test_the_page_of_findings_has_the_numbers_that_the_scripts_print():
    page = (ROOT / "docs/findings.md").read_text()
    said = zipfile.ZipFile(ROOT / "docs/results/early/continued.zip").read("comparisons.csv").decode()
    for command in ("claims.py", *map("studies.py ".__add__, ("cause", "dose", "visible", "intervention", "ladder"))):
        script, *study = command.split()
        command = [sys.executable, ROOT / "docs/results" / script, *study]
        said += subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    quoted = {*re.findall(r"-?\d+\.\d ± \d+\.\d", page)}
    missing = {interval for interval in quoted if not re.search(rf"(?<![0-9.]){re.escape(interval)}(?![0-9])", said)}
    assert len(quoted) == 41 and missing == {"3.9 ± 3.7"}, missing
    assert "clm-then-mlm-10,clm,3.94003,0.25741,7.62265,0.0440527,0.132158" in said
    for number in ("5.4 ± 2.5", "1.3 ± 3.1", "10.7 ± 8.2", "-7.4 ± 2.8", "8.7 ± 5.6", "1.3 ± 1.4"):
        assert number in said and number.removeprefix("-") in page
    assert re.findall(r"retrieval: ([+-]\S+) at (\d+)", said) == [("+5.04", "62"), ("-0.25", "113"), ("+0.33", "215")]
    assert "5.0, -0.3 and 0.3 points at 62, 113 and 215 tokens" in page
    assert re.findall("deviation (.*?) over .*?, (.*?) without", said)[2:] == [("2.1", "2.3"), ("4.4", "1.6")]
