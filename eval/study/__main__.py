"""A study: should this encoder be pretrained with MLM, CLM, or CLM followed by MLM? One settings file, one command.

    python -m eval.study config/study_demo.py            # all that is missing, then the report in OUT_DIR/report
    python -m eval.study config/study_paper.py --plan    # what it would do; needs no data
    python -m eval.study config/study_paper.py --slurm   # job scripts for a cluster, in OUT_DIR/slurm
    python -m eval.study sweep --checkpoints=out/clm,out/mlm     # only a grid of fine-tuning jobs; see sweep.py
    python -m eval.study report RESULTS_DIR                      # only a report on a folder of results; see report.py

A study is runs of train.py, then jobs of finetune.py, then a report. Runs share what they can: two runs with the same
size and seed that do the same up to some step are trained once up to it, and the second one branches off. After an
interruption at any moment, the same command continues. OUT_DIR holds runs/, results/ (of fine-tuning) and report/. The
checkpoints of a run may be deleted; it is trained again only if something still to do begins with one of them.
"""

import re
import shlex
import signal
import sys
import tempfile
from pathlib import Path

import torch

import configurator
from data.prepare import EMBEDDED_FOLDER, prepare_embedded
from errors import Damaged, DataError
from eval.study import report, sweep
from eval.study.costs import describe
from eval.study.jobs import FINETUNE, check_lists, counted, grouped, is_part, problems, slots
from eval.study.plan import TRAIN, Plan, slug
from eval.study.results import METRICS
from eval.study.run import args_for, finetune_all, pretrain
from eval.study.slurm import write_scripts

# --- pretraining ---
train = ""  # arguments of train.py that all runs share: config files, --key=value
# (name, further arguments, steps of CLM as text ...); the first has all splits, the others the pure objectives on the
# longest budget, and there a split with each of these steps of CLM too
sizes = (("demo", ""),)
splits = ((650, 0, 325, 650),)  # each a budget in steps, then the steps of CLM that its models begin with
mask_ratios = (0.4,)  # the first is that of all models; the others, of every size, of MLM alone on the longest budget
# (name, arguments of train.py that change MLM alone), such as ("mixed 1:1", "--clm_windows=0.5"): also trained on the
# longest budget, with every seed; ("", "") = none
variants = (("", ""),)
late_switch = 0  # steps of CLM, on the longest budget, after which MLM follows at each of these ratios; 0 = none
continued = ()  # steps of MLM that the pure models of the longest budget get on top, with a new optimizer
continue_args = ""  # further arguments of train.py in those
intermediate = ()  # steps of the two pure runs on the longest budget at which they are fine-tuned too
seeds = (1,)  # of pretraining; all but the first only repeat the splits with these
repeated = ()  # steps of CLM, on every budget that has them; empty = all splits
lrs = (0.0,)  # peak learning rate, 0 = that of train; of several, each objective gets the best of short trial runs
lr_steps = 0  # steps of those runs
processes = 1  # of a run, under torchrun; on GPUs one each
# --- fine-tuning ---
tasks = (("embedded-tc", ""),)  # (data set by name or task file, further arguments of finetune.py)
finetune = ""  # arguments of finetune.py that all jobs share
finetune_lrs = (1e-3, 3e-3)  # peak learning rates
finetune_seeds = (1, 2, 3)
metrics = "field"  # by which rates are chosen and models compared: the usual one of each task, or "paper": the paper's
choose_once = False  # choose a model's rate on a task on the first seeds of pretraining and fine-tuning alone
random_weights = True  # also fine-tune randomly initialized models, one of each size
# --- where and how ---
out_dir = "out/study"
jobs = 0  # runs or fine-tuning jobs at a time: on each GPU; without a GPU in all. 0 = one a GPU, one a core
plan = False  # print what there is to do, and stop
slurm = False  # write job scripts instead of running, and stop
only = ""  # one part of it, for a cluster: the name of a run, finetune:3/100, or report


PLANNED = "max_steps seed out_dir resume branch_from init_from keep_last keep_steps".split()  # train.py's, of each run


def check(cfg):
    """Yield what is wrong with the settings, a sentence each."""
    yield from check_lists(cfg, optional=("continued", "intermediate", "repeated", "variants"))
    yield from check_variants(cfg)
    yield from configurator.outside_limits(cfg, ["processes"], ["jobs", "late_switch"], choices={"metrics": METRICS})
    yield from (f"tasks: each is (name, arguments), got {pair}" for pair in cfg.tasks if len(pair) != 2)
    yield from (f"sizes: each is (name, arguments) or more, got {size}" for size in cfg.sizes if len(size) < 2)
    for name in [size[0] for size in cfg.sizes if not re.fullmatch("[A-Za-z0-9._-]+", size[0])]:  # part of file names
        yield f"sizes: {name!r}: a name has letters, digits, '.', '_' and '-' only"
    for budget, *switches in cfg.splits:
        if not switches or budget < 1 or any(not 0 <= steps <= budget for steps in switches):
            yield f"splits: {(budget, *switches)}: give a budget, then steps of CLM between 0 and it"
    longest, *switches = max(cfg.splits, default=(0,))
    for steps in [steps for size in cfg.sizes for steps in size[2:]]:
        if not steps.isdecimal() or int(steps) > longest:
            yield f"sizes: {steps!r}: steps of CLM must be a number up to the longest budget of {longest}"
    pure, several = {0, longest} <= set(switches), len(cfg.lrs) > 1
    for name, used in (("continued", cfg.continued), ("intermediate", cfg.intermediate), ("lrs", several)):
        if used and not pure:
            yield f"{name}: needs both pure objectives, 0 and {longest} steps of CLM, in the split of {longest} steps"
    if several != (cfg.lr_steps > 0) or (several and min(cfg.lrs) <= 0):
        yield f"lr_steps={cfg.lr_steps}: is for the choice between several lrs above 0, got {cfg.lrs}"
    if cfg.late_switch >= longest:
        yield f"late_switch={cfg.late_switch}: must be within the longest budget of {longest} steps"
    for step in [step for step in cfg.intermediate if not 0 < step < longest]:
        yield f"intermediate: {step} is not within the longest budget of {longest} steps"
    for clm in set(cfg.repeated) - {clm for _, *steps in cfg.splits for clm in steps}:
        yield f"repeated: {clm} is none of the steps of CLM in splits"


def check_variants(cfg):
    """Yield what is wrong with the variants, a sentence each."""
    yield from (f"variants: each is (name, arguments), got {it}" for it in cfg.variants if len(it) != 2)
    called, defaults = {size[0]: f"size {size[0]!r}" for size in cfg.sizes}, configurator.read_script(TRAIN)[0]
    for name, args in [it for it in cfg.variants if len(it) == 2 and it != ("", "")]:
        if not slug(name):
            yield f"variants: {name!r}: a name needs letters or digits, because files are called by it"
        if (other := called.setdefault(slug(name), repr(name))) != repr(name):
            yield f"variants: {name!r} and {other} would both be called {slug(name)} in names of files"
        words = shlex.split(args)
        yield from (f"variants: {name}: {problem}" for problem in configurator.parse(words, defaults)[1])
        given = {word[2:].partition("=")[0] for word in words}
        yield from (f"variants: {name}: {key} is set by the study" for key in PLANNED if key in given)
        if "lr" in given and cfg.lrs != (0.0,):
            yield f"variants: {name}: lr is set by the study, because it has lrs={cfg.lrs}"


def plan_problems(plan, runs, finetunes):
    """Return what stands in the way of some runs and of the fine-tuning jobs, a line each."""
    cfg, found = plan.cfg, []
    new = f"--out_dir={cfg.out_dir}/new"  # a new folder, because what a run will begin with may not be there yet
    commands = [(run.name, [TRAIN, *args_for(plan, run, cfg.lrs[0]), new]) for run in runs]
    if runs and 0 < (n := torch.cuda.device_count()) < cfg.processes:
        found.append((f"processes={cfg.processes}", f"this machine has {counted(n, 'GPU')}"))
    for task, args in cfg.tasks if finetunes else ():
        args = shlex.split(f"{cfg.finetune} {args}")
        point = [f"--task={task}", f"--lr={min(cfg.finetune_lrs)}", f"--seed={min(cfg.finetune_seeds)}"]
        commands.append((task, [FINETUNE, *args, *point, new]))
    for name, sentence in problems(commands, slots(cfg.jobs), {"WORLD_SIZE": str(cfg.processes)}):
        if name in plan.runs or not sentence.startswith("init_from"):  # what is fine-tuned is not trained yet
            found.append((name, sentence))
    return grouped(found)


def study(argv):
    """Do what is missing of a study, or a part of it."""
    args = [f"{arg}=True" if arg in ("--plan", "--slurm") else arg for arg in argv]
    cfg = configurator.load(__file__, args, check, "python -m eval.study")
    plan = Plan(cfg)
    runs = [run for run in plan.runs.values() if cfg.only in ("", run.name)]
    part = cfg.only.partition("finetune:")[2] if cfg.only else "1/1"  # of the fine-tuning jobs
    if not (runs or is_part(part) or cfg.only == "report"):
        sys.exit(f"only={cfg.only}: is none of its runs, nor finetune:I/N, nor report. --plan lists the runs")
    if cfg.slurm and not cfg.plan:
        return print(write_scripts(plan, [arg for arg in args if arg != "--slurm=True"]))
    if cfg.plan or not cfg.only:
        print(describe(plan))
    if cfg.plan:
        return
    if EMBEDDED_FOLDER in {plan.shape[run.size][0].data for run in runs} and not Path(EMBEDDED_FOLDER).exists():
        prepare_embedded()  # once, before several runs do it
    if found := plan_problems(plan, runs, part):
        sys.exit("\n".join(["nothing was started:", *found]))
    Path(cfg.out_dir).mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=cfg.out_dir).close()  # if it cannot be written, all jobs would fail
    failed = pretrain(plan, runs) + (finetune_all(plan, part) if part else [])
    if cfg.only in ("", "report"):
        print(report.write_study(plan))
    if failed:
        intro = f"{counted(len(failed), 'part')} failed or could not begin; the same command tries them again:"
        sys.exit("\n".join([intro, *failed[:20]]))


def main(argv):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is ended too
    try:
        match argv:
            case ["sweep", *args]:
                sweep.main(args)
            case ["report", *args]:
                report.main(args)
            case _:
                study(argv)
    except (Damaged, DataError, OSError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
