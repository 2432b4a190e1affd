"""A study pretrains the models of a table, fine-tunes them on tasks, and reports which is better and how sure that is.
For example: python -m eval.study config/study_demo.py

usage: python -m eval.study CONFIG.py [--key=value ...]      do what is missing, then write OUT_DIR/report
       python -m eval.study CONFIG.py --plan                 print what it would do and cost; needs no data
       python -m eval.study CONFIG.py --only=WAVE:I/N        do a part of a wave, on a cluster; --plan lists the waves
       python -m eval.study sweep --checkpoints=A,B [...]    only fine-tune given checkpoints, and report
       python -m eval.study report RESULTS_DIR [...]         only report on a folder; see --metrics, --primary

If interrupted, the same command continues. OUT_DIR holds runs/, results/ (of fine-tuning) and report/. You may delete a
run's checkpoints; it is trained again only if something still to do begins with one of them.
"""

import signal
import sys

import configurator
from data.prepare import part_of, prepare_embedded
from errors import exit_with_message
from eval.study import report
from eval.study.branch import schedule_problems
from eval.study.plan import Plan, Run, describe, misformed
from eval.study.results import METRICS
from eval.study.run import carry_out, grouped, problems_of

# --- models: each row is (name, what it begins with, arguments of train.py); see plan.py ---
runs = (("", "", ""),)
train = ""  # arguments of train.py that all rows share: config files, --key=value
seeds = (1,)  # pretraining seeds
also = ("",)  # intermediate checkpoints to fine-tune too, such as "mlm@1000"
random = ("",)  # rows whose initial weights are fine-tuned too
checkpoints = ("",)  # models that are only fine-tuned: files or folders of train.py, or models of the hub
processes = 1  # processes of a pretraining run, under torchrun; one per GPU
# --- fine-tuning ---
tasks = ("embedded-sc", "embedded-tc", "embedded-qa", "embedded-ir")  # may have arguments: "sst2 --max_steps=9"
finetune = ""  # arguments of finetune.py that all tasks share
rates = (1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4)  # peak learning rates
finetune_seeds = (1, 2, 3, 4, 5)
full_grid = False  # True: every seed tries all rates; False: the first does, the others use its best on validation
metrics = "field"  # what chooses rates and compares models: each task's usual metric, or "paper": the paper's
# --- comparisons ---
primary = (("", ""),)  # pairs of models whose differences answer the question; name them beforehand
# --- figures: (kinds, what is on the x-axis, the models of a line, the line's name); see figures.py ---
figures = (("", "", "", ""),)
# --- where and how ---
out_dir = "out/study"
jobs = 0  # runs at the same time, per GPU, or in all without a GPU. 0 = one per GPU, or one per core
plan = False  # print what there is to do, and stop
only = ""  # do one wave, a part of one, such as finetune-1:3/100, or the report; --plan lists the waves

COMMAND = "python -m eval.study"
LIMITS = [("at least", 1, "processes"), ("at least", 0, "jobs"), ("below", 1000, "processes jobs")]
CHOICES = {"metrics": METRICS}


def check(cfg):
    """Yield a sentence for each problem with the settings."""
    for name in ("seeds", "rates", "finetune_seeds"):
        if not cfg[name]:
            yield f"{name}: give at least one"
        if len(set(cfg[name])) < len(cfg[name]):
            yield f"{name}={cfg[name]}: give each only once"
    yield from configurator.value_problems(cfg, LIMITS, CHOICES)
    yield from Plan(cfg).problems


def check_report(cfg):
    """Like `check`, for a report on a folder."""
    yield from configurator.value_problems(cfg, choices=CHOICES)
    yield from (problem for *_, problem in misformed(cfg))


def study(argv, command=COMMAND):
    """Do what is missing in a study, or in the part that `only` names."""
    argv = ["--plan=True" if arg == "--plan" else arg for arg in argv]
    plan = Plan(configurator.load(__file__, argv, check, command))
    cfg = plan.cfg
    waves = selected(plan)
    items = sum(waves.values(), [])
    runs = [item for item in items if isinstance(item, Run)]
    points = [item for item in items if not isinstance(item, Run)]
    if not cfg.plan:
        for run in runs:  # here, so that parallel runs need not
            prepare_embedded(run.settings.data)
        stop_at("nothing was started:", problems_of(plan, runs, points))
    stop_at("nothing was started:", schedule_problems(runs))
    if cfg.plan or not cfg.only:
        print(describe(plan))
    if cfg.plan:
        return
    failed = carry_out(plan, waves)
    if "report" in waves:
        print(report.write(plan))
    stop_at(f"{len(failed)} failed or could not begin; the same command tries them again:", failed)


def stop_at(title, problems):
    """Exit with a message if there are problems, each a (name, sentence)."""
    if lines := grouped(problems):
        sys.exit("\n".join([title, *lines]))


def selected(plan):
    """Return {wave: items} as the setting `only` selects. A wave named "report", without items, comes last."""
    waves = {**plan.waves(), "report": []}
    only = plan.cfg.only
    if not only:
        return waves
    name, _, part = only.partition(":")
    if name not in waves:
        sys.exit(f"only={only}: give one of {', '.join(waves)}; a part of a wave is {[*waves][0]}:2/3")
    i, n = part_of(part, f"only={name}:")
    return {name: waves[name][i - 1 :: n]}


@exit_with_message()
def main(argv):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, so that running jobs are ended
    if argv[:1] == ["sweep"]:
        study(["--out_dir=out/sweep", *argv[1:]], f"{COMMAND} sweep")
    elif argv in ([], ["report"]):
        sys.exit(__doc__)
    elif argv[0] == "report":
        args = [f"--out_dir={argv[1]}", *argv[2:], "--runs=", "--checkpoints="]
        print(report.write(Plan(configurator.load(__file__, args, check_report, f"{COMMAND} report"))))
    else:
        study(argv)


if __name__ == "__main__":
    main(sys.argv[1:])
