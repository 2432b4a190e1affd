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
set -euo pipefail
cd {here}
names=({names})
exec {study} "--only=${{names[$SLURM_ARRAY_TASK_ID]}}"
"""
SUBMIT = """\
#!/bin/bash
# Each array waits for the end of the one before. If anything was cut short or failed, run this again: what is done
# stays done.
set -euo pipefail
"""


def write_scripts(plan, args):
    """Write the job scripts to OUT_DIR/slurm and return the path of submit.sh, which submits them in their order.

    They are an array for the runs of each depth of the tree, one or two for the fine-tuning jobs, and the report.
    args: the study's arguments.
    """
    depth = {}
    for run in plan.runs.values():
        depth[run.folder.name] = depth[run.parent.folder.name] + 1 if run.parent else 0
    arrays = {f"runs-{level}": [name for name in depth if depth[name] == level] for level in sorted({*depth.values()})}
    n = min(100, len(plan.points()))
    for i in range(1 if plan.cfg.full_grid else 2):
        arrays[f"finetune-{i}"] = [f"finetune:{part}/{n}" for part in range(1, n + 1)]
    arrays["report"] = ["report"]

    folder, study = Path(plan.cfg.out_dir, "slurm").absolute(), shlex.join([sys.executable, "-m", "eval.study", *args])
    folder.mkdir(parents=True, exist_ok=True)
    submit, here, after = SUBMIT, shlex.quote(os.getcwd()), ""
    for name, parts in arrays.items():
        gpus = plan.cfg.processes if name.startswith("runs") else int(name != "report")
        names, last, cpus = shlex.join(parts), len(parts) - 1, 8 * max(1, gpus)
        path = folder / f"{name}.sbatch"
        path.write_text(SCRIPT.format_map(locals()))
        submit += f"id=$(sbatch --parsable{after} {shlex.join([f'--output={folder}/{name}-%a.txt', str(path)])})\n"
        after = ' "--dependency=afterany:$id"'
    (folder / "submit.sh").write_text(submit)
    return folder / "submit.sh"
