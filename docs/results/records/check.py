"""Check a study of five seeds against the rules of docs/records.md, and keep the evidence.

    python docs/results/records/check.py out/study-record                                      # check
    python docs/results/records/check.py out/study-record docs/results/records/1-short-name.zip  # check, then keep

The evidence is a zip file with the layout of the study's folder, so that it can be checked again. It has
report/results.csv, and config.json and the last lines of metrics.jsonl of each run. A record is compared with those of
lower numbers. Number 0 is pure MLM.

Run it in the main folder, with the code that made the runs: model.py counts the parameters.
"""

import csv
import json
import sys
import zipfile
from pathlib import Path
from statistics import mean, stdev

import torch

sys.path.insert(0, ".")
from eval.study import stats
from model import ModelConfig, Transformer

RECORDS = Path(__file__).parent
TASKS = {"conll2003", "scifact"}
FINGERPRINT = "7b77aabde7c31921ef28969cdc2fde4545cbaf0e5a53dd9f40f4718ad7bd3592"  # of the text and its tokenizer
FIXED = {"global_batch_tokens": 2048, "eval_windows": 128, "seq_len": 128, "init_from": "", "branch_from": ""}
PARAMETERS = 3_000_000  # at most, with the output head
RATES = [0.001, 0.002, 0.004]  # fine-tuning rates of the first seed; the second uses the one that validation chose


def opened(study):
    """Return a study's folder or zip file as a path whose files can be read."""
    return zipfile.Path(study) if study.suffix == ".zip" else study


def read_runs(study):
    """Return {seed: (config.json, the last lines of metrics.jsonl)} of a study's runs."""
    runs = {}
    for folder in sorted((opened(study) / "runs").iterdir(), key=lambda folder: folder.name):
        config = json.loads((folder / "config.json").read_text())
        lines = (folder / "metrics.jsonl").read_text().splitlines()[-5:]
        runs[config["settings"]["seed"]] = config, [json.loads(line) for line in lines]
    return runs


def read_results(study):
    """Return the rows of a study's table of fine-tunings."""
    return [*csv.DictReader((opened(study) / "report" / "results.csv").read_text().splitlines())]


def final_losses(runs):
    return [lines[-1].get("val_mlm_loss", lines[-1].get("val_mntp_loss")) for _, lines in runs.values()]


def count_parameters(shape):
    """Return the number of parameters of a model, with the output head. shape: `model` of config.json."""
    shape = {name: tuple(value) if isinstance(value, list) else value for name, value in shape.items()}
    with torch.device("meta"):
        return sum(p.numel() for p in Transformer(ModelConfig(**shape)).parameters())


def earlier(study):
    """Return the files of the records before this study: all of them, if it is not in this folder."""
    records = {int(path.name.partition("-")[0]): path for path in RECORDS.glob("[0-9]*-*.zip")}
    own = [number for number, path in records.items() if path.resolve() == study.resolve()]
    return [records[number] for number in sorted(records) if not own or number < own[0]]


def targets(records):
    """Return (FLOPs to stay below, the highest loss, the lowest score) for a record. records: files, number 0 first.

    The loss is that of number 0, minus a margin for the noise of five seeds. The score is the highest lower end of the
    records' 95 % intervals, so it never falls.
    """
    losses = final_losses(read_runs(records[0]))
    flops, lower_ends = [], []
    for record in records:
        flops.append(max_flops(read_runs(record)))
        center, half = stats.interval([*mean_scores(record).values()])
        lower_ends.append(center - half)
    return min(flops), mean(losses) - 2.33 * stdev(losses) / len(losses) ** 0.5, max(lower_ends)


def max_flops(runs):
    return max(lines[-1]["flops"] for _, lines in runs.values())


def mean_scores(study):
    """Return {seed: the mean test score of both tasks, in percent} at the rates that validation chose."""
    tests = {}
    for row in read_results(study):
        if row["chosen"] == "True":
            tests.setdefault((int(row["pretraining_seed"]), row["task"]), []).append(float(row["test"]))
    seeds = [seed for seed, _ in tests if all((seed, task) in tests for task in TASKS)]
    return {seed: mean(mean(tests[seed, task]) for task in TASKS) for seed in seeds}


def fine_tuning_problems(study, runs):
    """Yield a sentence for each model and task that is not fine-tuned as the rules say."""
    models = {}
    for row in read_results(study):
        models.setdefault((int(row["pretraining_seed"]), row["task"]), []).append(row)
    for (seed, task), rows in models.items():
        rates = sorted({float(row["lr"]) for row in rows})
        if rates != RATES:
            yield f"seed {seed}, {task}: fine-tuned at {rates}, must be {RATES}"
        chosen = [row for row in rows if row["chosen"] == "True"]
        if len({row["seed"] for row in chosen}) != 2:
            yield f"seed {seed}, {task}: {len(chosen)} seeds of fine-tuning at the chosen rate, must be 2"
        best = max((row for row in rows if row["seed"] == "1"), key=lambda row: float(row["validation"]))["lr"]
        if {row["lr"] for row in chosen} != {best}:
            yield f"seed {seed}, {task}: validation chooses the rate {best}, but the score is that of another one"
        steps = {int(row["step"]) for row in rows}
        if seed in runs and steps != {runs[seed][1][-1]["step"]}:
            yield f"seed {seed}, {task}: fine-tuned after {sorted(steps)} steps, not at the end of its run"


def problems(study, runs, scores):
    """Yield a sentence for each rule that a study breaks."""
    if len(runs) != 5 or set(scores) != set(runs):
        yield f"seeds: trained {sorted(runs)}, fine-tuned {sorted(scores)}; the rules ask for the same five"
    if len({config["settings"]["max_steps"] for config, _ in runs.values()}) != 1:
        yield "max_steps: it differs between the seeds"
    if len(models := {row["model"] for row in read_results(study)}) != 1:
        yield f"models: {', '.join(sorted(models))}; a record is one row"
    for record in earlier(study):
        used = set(read_runs(record)) & set(runs)
        if used:
            yield f"seeds: {record.stem} has used {sorted(used)}"
    yield from fine_tuning_problems(study, runs)
    for seed, (config, lines) in runs.items():
        settings, model = config["settings"], config["model"]
        if config["data_fingerprint"] != FINGERPRINT:
            yield f"seed {seed}: another text or tokenizer, fingerprint {config['data_fingerprint'][:8]}..."
        for name, value in FIXED.items():
            if (found := (settings | model)[name]) != value:
                yield f"seed {seed}: {name}={found}, must be {value}"
        if settings["micro_batch"] < 16:
            yield f"seed {seed}: micro_batch={settings['micro_batch']}: a step must be one pass over 16 windows"
        try:
            parameters = count_parameters(model)
        except (TypeError, ValueError) as error:
            yield f"seed {seed}: this model.py cannot build its model ({error}): use the code of the runs"
            continue
        if parameters != config["parameters"]:
            more = f"{config['parameters']:,} parameters in the run, {parameters:,} by this model.py"
            yield f"seed {seed}: {more}: use the code of the runs"
        if parameters > PARAMETERS:
            yield f"seed {seed}: {parameters:,} parameters, at most {PARAMETERS:,}"
        if lines[-1]["step"] != settings["max_steps"]:
            yield f"seed {seed}: the log ends at step {lines[-1]['step']} of {settings['max_steps']}"
        if lines[-1]["tokens"] > settings["max_steps"] * FIXED["global_batch_tokens"]:
            yield f"seed {seed}: {lines[-1]['tokens']:,} tokens are more than those of {settings['max_steps']} steps"
    if None in final_losses(runs):
        yield "the last line of a log has no validation loss"


def keep(study, path):
    """Write the files that the check reads to a zip file, which gets its name when it is complete."""
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
        for run in sorted((study / "runs").iterdir()):
            archive.writestr(f"runs/{run.name}/config.json", (run / "config.json").read_text())
            lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
            archive.writestr(f"runs/{run.name}/metrics.jsonl", "".join(lines[-5:]))
        archive.write(study / "report" / "results.csv", "report/results.csv")
    part.replace(path)


def main(study, kept=None):
    if kept and (kept.suffix != ".zip" or kept.exists()):
        sys.exit(f"{kept} must be a new file that ends in .zip; existing files are not replaced")
    if not study.exists() or not (opened(study) / "report" / "results.csv").exists():
        sys.exit(f"{study}: no such study. Run it first: python -m eval.study config/study_record.py")
    runs, scores = read_runs(study), mean_scores(study)
    broken = list(problems(study, runs, scores))
    if broken:
        sys.exit("\n".join(broken))
    loss, score, flops = mean(final_losses(runs)), mean(scores.values()), max_flops(runs)
    print(f"flops {flops:.3g}, loss {loss:.4f}, score {score:.2f}")
    if records := earlier(study):
        most_flops, most_loss, least_score = targets(records)
        print(f"for a record: flops below {most_flops:.3g}, loss at most {most_loss:.4f}, score {least_score:.2f}")
        if not (flops < most_flops and loss <= most_loss and score >= least_score):  # a NaN is no record
            sys.exit("not a record")
    if kept:
        keep(study, kept)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
