"""Job scripts that carry out a study on a Slurm cluster."""

import os
import shlex
import sys
from pathlib import Path

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --array=0-{last}
#SBATCH --nodes=1 --ntasks=1 --gpus-per-node={gpus} --cpus-per-task={cpus}
#SBATCH --time=24:00:00 --signal=B:TERM@300
#SBATCH --output={folder}/{name}-%a.txt
cd {here}
{body}
"""
SUBMIT = """\
#!/bin/bash
# Each array waits for the end of the one before. If anything was cut short or failed, run this again: what is done
# stays done.
set -e
"""


def write_scripts(plan, args):
    """Write the job scripts to OUT_DIR/slurm and return the path of submit.sh, which submits them in their order.

    They are an array for the runs of each depth of the tree, one or two for the fine-tuning jobs, and the report.
    args: the study's arguments.
    """
    folder, study = Path(plan.cfg.out_dir, "slurm"), shlex.join([sys.executable, "-m", "eval.study", *args])
    scripts = []  # (name, number of tasks, GPUs, the bash lines) of each
    for level, names in enumerate(levels(plan)):
        body = f"names=({shlex.join(names)})\nexec {study} --only=${{names[$SLURM_ARRAY_TASK_ID]}}"
        scripts.append((f"runs-{level}", len(names), plan.cfg.processes, body))
    n = min(100, len(plan.rounds()[0]))
    for i in range(2 if plan.cfg.choose_once else 1):
        scripts.append((f"finetune-{i}", n, 1, f"exec {study} --only=finetune:$((SLURM_ARRAY_TASK_ID + 1))/{n}"))
    scripts.append(("report", 1, 0, f"exec {study} --only=report"))
    folder.mkdir(parents=True, exist_ok=True)
    submit, here = SUBMIT, shlex.quote(os.getcwd())
    for i, (name, n, gpus, body) in enumerate(scripts):
        path, cpus = folder / f"{name}.sbatch", 8 * max(1, gpus)
        path.write_text(SCRIPT.format(name=name, last=n - 1, gpus=gpus, cpus=cpus, folder=folder, here=here, body=body))
        after = " --dependency=afterany:$id" if i else ""
        submit += f"id=$(sbatch --parsable{after} {shlex.quote(str(path))})\n"
    (folder / "submit.sh").write_text(submit)
    return folder / "submit.sh"


def levels(plan):
    """Return the names of the runs by their depth in the tree. Those that try a learning rate come before all others."""
    depth, trials = {}, any(run.lr for run in plan.runs.values())
    for run in plan.runs.values():
        before = run.parent or run.base
        depth[run.name] = 0 if run.lr else depth[before] + 1 if before else int(trials)
    return [[name for name in depth if depth[name] == level] for level in range(max(depth.values()) + 1)]
