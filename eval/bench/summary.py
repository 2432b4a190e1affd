"""What `gpu.sh` has measured: the table of docs/speed.md filled, with date, hardware and versions.

    python eval/bench/summary.py FOLDER

It reads FOLDER/records.jsonl and FOLDER/parts.txt, and imports nothing large, because gpu.sh runs it after each part.
"""

import json
import sys
import time
from pathlib import Path

# What the table says beside the measured values; docs/speed.md has the assumptions.
ATTENTION = {  # (mask, pass): the goal on an H200 for head dim 64 and T = 2,048 / 8,192, in TFLOP/s
    ("full", "forward"): "430 / 450",
    ("causal", "forward"): "370 / 440",
    ("full", "backward"): "320 / 360",
    ("causal", "backward"): "270 / 330",
}
STEP = {  # preset: the goal for MFU on an H200, CLM / MLM predicted for an H100 and an H200, GB computed for 80 GB
    "210m": ("40", "43.7 / 41.3, 47.1 / 44.2", "68.8"),
    "610m": ("48", "46.3 / 44.2, 49.0 / 46.6", "75.0"),
    "1b": ("52", "47.2 / 44.2, 49.4 / 46.0", "75.3"),
}


def row(*cells):
    return f"| {' | '.join(cells)} |"


def read(folder):
    """Return the records of a folder, a list of dicts. A line that a process was still writing is left out."""
    path, records = Path(folder, "records.jsonl"), []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def first(records, key, **facts):
    """Return the value of `key` in the first record with these facts, None where there is none."""
    return next((r[key] for r in records if facts.items() <= r.items()), None)


def join(*values):
    """Join numbers, of which some may not have been measured, as "430 / 450"; "" if none was."""
    texts = ["–" if value is None else f"{value:.3g}" for value in values]
    return " / ".join(texts) if {*texts} != {"–"} else ""


def speeds(records, mask, which):
    """Join what attention reached for T = 2,048 / 8,192, as "ours 412 / 430, cudnn 500 / 510"."""
    facts, texts = dict(bench="attention", D=64, group=1, documents=0, mask=mask, which=which), []
    for name in ("ours", "cudnn", "flash", "flex"):
        pair = join(*(first(records, "tflops", name=name, T=T, **facts) for T in (2048, 8192)))
        texts += [f"{name} {pair}"] * bool(pair)
    return ", ".join(texts)


def goals(records):
    """Return the table of docs/speed.md, a list of lines. Without records its last column is empty."""
    lines = [row("what", "goal (H200)", "predicted (H100, H200)", "measured"), row(*["---"] * 4)]
    for (mask, which), goal in ATTENTION.items():
        lines.append(row(f"attention {which}, {mask}, TFLOP/s, 2k / 8k", goal, "", speeds(records, mask, which)))
    for model, (goal, mfu, memory) in STEP.items():
        facts = [dict(bench="step", model=model, variant="compiled", phase=phase) for phase in ("CLM", "MLM")]
        reached, used = (join(*(first(records, key, **f) for f in facts)) for key in ("mfu", "gigabytes"))
        lines.append(row(f"{model}, MFU in %, CLM / MLM", goal, mfu, reached))
        lines.append(row(f"{model}, peak memory in GB, CLM / MLM", "", memory, used))
    return lines


def main(folder):
    records, parts = read(folder), Path(folder, "parts.txt")
    print(time.strftime("%Y-%m-%d"))
    for record in records:
        if record["bench"] == "facts":
            print(record["fact"])
    print("", *goals(records), sep="\n")
    print("", parts.read_text() if parts.exists() else "no part has ended yet", sep="\n")


if __name__ == "__main__":
    main(sys.argv[1])
