"""What a study is made of: runs that share what they can, checkpoints to fine-tune, and how much all of it is.

A plan follows from the settings of eval/study.py alone. Two runs with the same size, seed and start that do the same
up to some step are trained once up to it: the shorter or later one branches off the other's checkpoint of that step.
That is as in arXiv 2507.00994, where every split begins on one CLM trunk, and short budgets leave long ones where
their learning rate starts to decay.
"""

import itertools
import re
import shlex
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

import configurator
from data.shards import load_meta
from checkpoint import model_config
from data.prepare import EMBEDDED_FOLDER
from errors import DataError
from runtime import flops_per_token, peak_flops, resolve_auto
from eval.tasks.registry import TASKS
from model import Transformer

ROOT = Path(__file__).resolve().parents[2]
TRAIN, FINETUNE = str(ROOT / "train.py"), str(ROOT / "finetune.py")
LENGTHS = {"sc": 64, "tc": 32, "qa": 200, "ir": 200}  # tokens of an example, a guess for the estimate
SLOWER = 3  # than pretraining: fine-tuning has small batches, scores and starts anew; seen in config/study_small.py


@dataclass
class Run:
    """A run of train.py: CLM for its first `clm` steps, then MLM, up to its budget."""

    name: str
    size: str
    budget: int
    clm: int
    mask: float
    seed: int
    base: str = ""  # the run whose final weights it starts from
    lr: float = 0.0  # of a run that is there to choose one
    parent: str = ""  # the run it branches off ...
    start: int = 0  # ... at this step
    keep: tuple = ()  # steps whose checkpoints others branch off, or that are fine-tuned


@dataclass
class Model:
    """A checkpoint to fine-tune; or, untrained, random weights of its shape."""

    run: Run
    step: int
    untrained: bool = False

    @property
    def name(self):
        return f"untrained-{self.run.size}" if self.untrained else f"{self.run.name}-{self.step}"


class Plan:
    """What a study is made of.

    runs: {name: Run}, each after those that it begins with. models: every Model to fine-tune, the final ones first.
    shape: {size: (train.py's settings, ModelConfig)}.
    Raises DataError: data that are no prepared folder, a run that would need two learning rates.
    """

    def __init__(self, s):
        self.s, self.runs, self.shape, self.times = s, {}, {}, {}
        self.seed, self.size = s["seeds"][0], s["sizes"][0][0]  # what has all of the study
        self.longest, *switches = max(s["splits"])
        for size, _ in s["sizes"]:
            settings = configurator.load(TRAIN, self.words(size))
            data = Path(settings["data"])
            assumed = 4096 if settings["data"] == EMBEDDED_FOLDER else 128_256  # the embedded one's, Llama 3's
            vocab = load_meta(data)["tokenizer"]["vocab_size"] if data.exists() else assumed
            self.shape[size] = settings, model_config(settings, vocab)
            for continues in (False, True):
                its = configurator.load(TRAIN, self.words(size, continues=continues))
                self.times[size, continues] = its["warmup_steps"], its["decay_steps"]

        sizes, (ratio, *ratios), longest, first = [*self.shape], s["mask_ratios"], self.longest, self.seed
        if len(s["lrs"]) > 1:
            for size, clm, lr in itertools.product(sizes, (s["lr_steps"], 0), s["lrs"]):
                self.add(size, s["lr_steps"], clm, ratio, first, lr=lr)
        wanted = {(size, first, longest, clm, ratio) for size in sizes for clm in {0, longest} & {*switches}}
        wanted |= {(size, first, longest, 0, mask) for size in sizes for mask in ratios}
        wanted |= {(self.size, first, budget, clm, ratio) for budget, *steps in s["splits"] for clm in steps}
        wanted |= {(self.size, first, longest, s["late_switch"], mask) for mask in s["mask_ratios"] if s["late_switch"]}
        wanted |= {(self.size, seed, budget, clm, ratio) for seed in s["seeds"][1:] for budget, *steps in s["splits"]
                   for clm in steps if not s["repeated"] or clm in s["repeated"]}  # fmt: skip

        def order(its):  # long before short, CLM before what leaves it
            size, seed, budget, clm, mask = its
            return s["seeds"].index(seed), sizes.index(size), -budget, -clm, mask

        for size, seed, budget, clm, mask in sorted(wanted, key=order):
            self.add(size, budget, clm, mask, seed)
        for clm, steps in itertools.product((longest, 0), sorted(s["continued"], reverse=True)):
            self.add(self.size, steps, 0, ratio, first, base=self.pure(clm).name)

        mixed = [run for run in self.runs.values() if run.start < run.clm < run.budget]
        if len(s["lrs"]) > 1 and mixed:
            raise DataError(f"lrs: {mixed[0].name} has both objectives in one run, which has one learning rate. Let it "
                            f"branch off CLM: also give {longest} steps of CLM, in splits and repeated")  # fmt: skip
        self.finals = [Model(run, run.budget) for run in self.runs.values() if not run.lr]
        self.inside = [Model(self.pure(clm), step) for step in s["intermediate"] for clm in (self.longest, 0)]
        shapes = [next(m.run for m in self.finals if m.run.size == size) for size in sizes]
        self.untrained = [Model(run, 0, untrained=True) for run in shapes if s["untrained"]]
        self.models = self.finals + self.inside + self.untrained
        kept = [(self.runs[run.parent], run.start) for run in self.runs.values() if run.parent]
        for run, step in kept + [(model.run, model.step) for model in self.inside]:
            run.keep = tuple(sorted({*run.keep, step}))

    def words(self, size, further=(), continues=False):
        """For train.py."""
        shared = shlex.split(f"{self.s['train']} {dict(self.s['sizes'])[size]}")
        return [*shared, *further, *shlex.split(self.s["continue_words"] if continues else "")]

    def pure(self, clm):
        """The run of a pure objective that has all of the study."""
        return next(run for run in self.runs.values() if (run.size, run.seed, run.budget, run.clm, run.mask, run.base, run.lr)
                    == (self.size, self.seed, self.longest, clm, self.s["mask_ratios"][0], "", 0))  # fmt: skip

    def add(self, size, budget, clm, mask, seed, base="", lr=0.0):
        """Named as on the paper's page of the hub: 610m-clm-10k-mlm40-42k ends at 42k steps, of which 10k were CLM."""
        mlm, total = f"mlm{100 * mask:.3g}", budget + (self.longest if base else 0)
        parts = [f"clm-{thousands(clm)}"] * (clm > 0) + [f"{mlm}-{thousands(total)}"] * (clm < budget)
        if base:
            parts.insert(0, f"{'clm' if self.runs[base].clm else mlm}-dec{thousands(self.longest)}")
        name = "-".join([size, *parts, *[f"lr-{lr:g}"] * (lr > 0), *[f"seed-{seed}"] * (seed != self.seed)])
        run = self.runs[name] = Run(name, size, budget, clm, mask, seed, base, lr)
        for other in [*self.runs.values()][:-1]:
            if (steps := self.shared(run, other)) > run.start:
                run.parent, run.start = other.name, steps

    def schedule(self, run):
        """Steps of (warmup, decay); where the budget is too short for both, all that is left after the warmup decays."""
        warmup, decay = self.times[run.size, bool(run.base)]
        warmup = min(warmup, run.budget - 1)
        return warmup, min(decay, run.budget - warmup)

    def shared(self, a, b):
        """Steps that two runs have in common: the same start, data, masks and learning rate. 0 where that is no more than
        the warmup, whose few steps are not worth a checkpoint."""
        (warmup, decay), (other_warmup, other_decay) = self.schedule(a), self.schedule(b)
        if (a.size, a.seed, a.base) != (b.size, b.seed, b.base) or a.lr or b.lr or warmup != other_warmup:
            return 0
        steps = a.budget - 1
        if a.budget != b.budget:  # then their learning rates part where the first one decays
            steps = min(a.budget - max(1, decay), b.budget - max(1, other_decay))
        if a.clm != b.clm or a.mask != b.mask:
            steps = min(steps, a.clm, b.clm)
        return steps if steps > warmup else 0

    def jobs(self, model):
        """How many fine-tunings of a model there are."""
        s, n_lrs, n_seeds = self.s, len(self.s["finetune_lrs"]), len(self.s["finetune_seeds"])
        if not s["choose_once"]:
            return n_lrs * n_seeds * len(s["tasks"])
        return (n_seeds + (n_lrs - 1) * (model.run.seed == self.seed)) * len(s["tasks"])


def folder_of(p, name):
    """Of a run."""
    return Path(p.s["out_dir"], "runs", name)


def logged(p, run):
    """The last step in the whole lines of a run's log; 0 without one. At its budget a run has ended."""
    log = folder_of(p, run.name) / "metrics.jsonl"
    return max(map(int, re.findall(r'"step": (\d+).*\n', log.read_text())), default=0) if log.exists() else 0


def results_of(p):
    """The folder of all fine-tunings: checkpoint/task/lr-LR_seed-SEED below it."""
    return Path(p.s["out_dir"], "results")


def thousands(steps):
    return f"{steps // 1000}k" if steps % 1000 == 0 else f"{steps}"


# ----------------------------------------------------------------------------
# Telling it


def tell(p):
    """The plan as text: the tree of runs, then how much of everything."""
    children, lines, runs = defaultdict(list), [], [*p.runs.values()]
    for run in runs:
        children[run.parent or run.base].append(run)

    def branch(run, depth):
        begin = f"from step {run.start:,}, " if run.parent else "from the final weights, " if run.base else ""
        phases = [f"CLM to {run.clm:,}"] * (run.clm > run.start) + [f"MLM to {run.budget:,}"] * (run.clm < run.budget)
        keep = f", keeps {' '.join(f'{step:,}' for step in run.keep)}" if run.keep else ""
        lines.append(f"{'  ' * depth}{run.name}: {begin}{', '.join(phases)}{keep}")
        for child in children[run.name]:
            branch(child, depth + 1)

    for run in children[""]:
        branch(run, 0)
    trained, whole = sum(run.budget - run.start for run in runs), sum(run.budget for run in runs)
    tokens, flops, disk = map(sum, zip(*(cost(p, run) for run in runs)))
    tuning = 0  # FLOPs: 6 for each weight of the blocks and token
    for task, words in p.s["tasks"]:
        t = configurator.load(FINETUNE, shlex.split(f"{p.s['finetune']} {words}"))
        length = LENGTHS[TASKS[task].family if task in TASKS else task[-2:]]
        for model in p.models:
            n = p.jobs(model) // len(p.s["tasks"]) * t["max_steps"] * t["batch_size"] * length
            tuning += n * flops_per_token(p.shape[model.run.size][1], length, False, 0)
    settings = resolve_auto(p.shape[p.size][0])
    rate, how = flops_per_second(torch.device(settings["device"]), settings["dtype"])
    searching = sum(run.lr > 0 for run in runs)
    lines += ["", f"tokens of pretraining {tokens:,}",
              f"FLOPs {flops:.2g} of pretraining, {tuning:.2g} of fine-tuning, if texts are as long as usual",
              f"hours on this machine {flops / rate / 3600:,.1f} + {SLOWER * tuning / rate / 3600:,.1f}, at {rate / 1e12:,.3g} "
              f"TFLOP/s, {how}, and 1/{SLOWER} of that in fine-tuning",
              f"disk {disk / 1e9:,.1f} GB", ""]  # fmt: skip
    lines += [f"runs that choose a learning rate {searching}"] * (searching > 0)
    lines += [f"final models {len(p.finals)}", f"intermediate models {len(p.inside)}",
              f"fine-tuning runs {sum(map(p.jobs, p.finals + p.inside))}",
              f"fine-tuning runs of random weights {sum(map(p.jobs, p.untrained))}",
              f"steps trained {trained}", f"steps saved by sharing {whole - trained}"]  # fmt: skip
    return "\n".join(lines)


def cost(p, run):
    """(tokens, FLOPs, bytes of checkpoints: weights and two moments in fp32) of a run."""
    settings, config = p.shape[run.size]
    clm = max(0, run.clm - run.start)
    causal, full = (flops_per_token(config, config.seq_len, c, 1 if c else run.mask) for c in (True, False))
    with torch.device("meta"):
        n = sum(weights.numel() for weights in Transformer(config).parameters())
    step = settings["global_batch_tokens"]
    mlm = run.budget - run.start - clm
    return step * (clm + mlm), step * (clm * causal + mlm * full), 12 * n * (len(run.keep) + 1)


def flops_per_second(device, dtype):
    """(FLOP/s that this machine may reach in training, how that is known)."""
    if device.type == "cuda" and (peak := peak_flops(device)):
        n = torch.cuda.device_count()
        return 0.4 * peak * n, f"40 % of the peak of {n} x {torch.cuda.get_device_name()}"
    a = torch.randn(1024, 1024, device=device).to(getattr(torch, dtype))
    times = []
    for _ in range(6):
        started = time.perf_counter()
        (a @ a).sum().item()
        times.append(time.perf_counter() - started)
    return 0.4 * 2 * 1024**3 / min(times), f"40 % of what a product of matrices reaches here in {dtype}"
