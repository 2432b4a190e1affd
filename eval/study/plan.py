"""What a study consists of: runs that share their steps, and checkpoints to fine-tune.

A plan follows from the settings of `python -m eval.study` alone. Two runs with the same size, seed and start that do
the same up to some step are trained once up to it: the shorter or later one branches off the other's checkpoint of
that step. arXiv 2507.00994 does so too: every split begins on one CLM trunk, and a short budget leaves a long one where
its learning rate starts to decay.
"""

import itertools
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import checkpoint
import configurator
from data.objective import SETTINGS
from data.prepare import EMBEDDED_FOLDER
from data.shards import load_meta
from errors import DataError
from eval.study.jobs import ROOT, grid

TRAIN = ROOT / "train.py"


@dataclass(eq=False)
class Run:
    """A run of train.py: CLM for its first `clm` steps, then MLM, or what a variant has instead, up to its budget."""

    name: str
    folder: Path
    size: str  # or the slug of a variant, which is of the first size
    budget: int
    clm: int
    mask: float  # the first of mask_ratios, if a variant has no other
    seed: int
    warmup: int  # steps
    decay: int
    trunk: str = ""  # the size whose steps of CLM it can begin with: its own, or of some variants the first size
    base: "Run | None" = None  # the run whose final weights it starts from
    lr: float = 0.0  # above 0: a short run that only serves to choose a learning rate
    parent: "Run | None" = None  # the run it branches off ...
    start: int = 0  # ... at this step
    keep: tuple = ()  # steps whose checkpoints are kept: others branch off there, or they are fine-tuned

    @property
    def before(self):
        """The run that it begins with, or None."""
        return self.parent or self.base

    @property
    def variant(self):
        """All that tells runs apart but the seed."""
        return self.size, self.budget, self.clm, self.mask, self.base and self.base.name, self.lr

    def checkpoint(self, step):
        return checkpoint.path_of(self.folder, step)

    def ended(self):
        """Whether the log is at the last step. The checkpoints may be gone."""
        return checkpoint.last_logged(self.folder) >= self.budget


@dataclass(eq=False)
class Model:
    """A checkpoint to fine-tune, or random weights of the same shape."""

    run: Run
    step: int
    random_weights: bool = False

    @property
    def name(self):
        return f"random-{self.run.size}" if self.random_weights else f"{self.run.name}-{self.step}"

    @property
    def variant(self):
        return *self.run.variant, self.step, self.random_weights

    @property
    def checkpoint(self):
        """The checkpoint that is fine-tuned. Random weights take their shape and tokenizer from it."""
        return self.run.checkpoint(self.step or self.run.budget)


class Plan:
    """All runs and models of a study.

    runs: {name: Run}, each after those that it begins with. models: every Model to fine-tune: `finals` at the end of
    their runs, `inside` on the way there, `random` with random weights. shape: {size or slug of a variant: (train.py's
    settings, ModelConfig)}. named: {slug of a variant: (name, arguments)}.
    seed, size: the pretraining seed and the size that every experiment has. longest: the longest budget in steps.
    results: the folder of all fine-tuning results; below it, see `jobs.job_folder`.
    Raises DataError if the data is not a prepared folder, or if a run would need two learning rates.
    """

    def __init__(self, cfg):
        self.cfg, self.runs, self.shape, self.config_of = cfg, {}, {}, {}
        self.results = Path(cfg.out_dir, "results")
        self.seed, self.size, self.longest = cfg.seeds[0], cfg.sizes[0][0], max(cfg.splits)[0]
        self.sizes = [size for size, *_ in cfg.sizes]
        self.named = {slug(name): (name, args) for name, args in cfg.variants if name}
        alone = f"{cfg.sizes[0][1]} --switch_step=0 --mask_ratio={cfg.mask_ratios[0]}"  # MLM alone: variants change it
        variants = [(key, f"{alone} {args}") for key, (_, args) in self.named.items()]
        for size, args, *_ in (*cfg.sizes, *variants):
            self.config_of[size] = args
            settings = configurator.load(TRAIN, self.train_args(size))
            self.shape[size] = settings, checkpoint.model_config(settings, vocab_size(settings.data))
        self.continued = configurator.load(TRAIN, self.train_args(self.size, continues=True))
        if len(cfg.lrs) > 1:
            trials = [*itertools.product(self.sizes, (cfg.lr_steps, 0)), *((key, 0) for key in self.named)]
            for (size, clm), lr in itertools.product(trials, cfg.lrs):
                self._add(size, self.seed, cfg.lr_steps, clm, cfg.mask_ratios[0], lr=lr)
        for wanted in self._wanted():
            self._add(*wanted)
        for seed, key in itertools.product(cfg.seeds, self.named):
            self._add(key, seed, self.longest, self.shape[key][0].switch_step, cfg.mask_ratios[0])
        for clm, steps in itertools.product((self.longest, 0), sorted(cfg.continued, reverse=True)):
            self._add(self.size, self.seed, steps, 0, cfg.mask_ratios[0], base=self.pure(clm))

        both = [run for run in self.runs.values() if run.start < run.clm < run.budget and run.trunk in self.sizes]
        if len(cfg.lrs) > 1 and both:
            why = f"{both[0].name} has both objectives in one run, which has one learning rate. Let it branch off CLM"
            raise DataError(f"lrs: {why}: also give {self.longest} steps of CLM, in splits and repeated")
        self.finals = [Model(run, run.budget) for run in self.runs.values() if not run.lr]
        self.inside = [Model(self.pure(clm), step) for step in cfg.intermediate for clm in (self.longest, 0)]
        one_per_size = {model.run.size: model.run for model in reversed(self.finals)}
        self.random = [Model(one_per_size[size], 0, True) for size in self.sizes if cfg.random_weights]
        self.models = self.finals + self.inside + self.random
        kept = [(run.parent, run.start) for run in self.runs.values() if run.parent]
        for run, step in kept + [(model.run, model.step) for model in self.inside]:
            run.keep = tuple(sorted({*run.keep, step}))

    def _wanted(self):
        """Return (size, seed, budget, steps of CLM, mask ratio) of every run from scratch, each after its trunk.

        All but those of the variants.
        """
        cfg, sizes, (ratio, *ratios) = self.cfg, self.sizes, self.cfg.mask_ratios
        splits = [(budget, clm) for budget, *steps in cfg.splits for clm in steps]
        pure = {(self.longest, 0), (self.longest, self.longest)}.intersection(splits)
        wanted = {(size, self.seed, *split, ratio) for size in sizes for split in pure}
        wanted |= {(size, self.seed, self.longest, int(clm), ratio) for size, _, *its in cfg.sizes for clm in its}
        wanted |= {(size, self.seed, self.longest, 0, mask) for size in sizes for mask in ratios}
        wanted |= {(self.size, self.seed, *split, ratio) for split in splits}
        if cfg.late_switch:
            wanted |= {(self.size, self.seed, self.longest, cfg.late_switch, mask) for mask in cfg.mask_ratios}
        repeated = [split for split in splits if not cfg.repeated or split[1] in cfg.repeated]
        wanted |= {(self.size, seed, *split, ratio) for seed in cfg.seeds[1:] for split in repeated}

        def order(run):  # long before short, CLM before what branches off it
            size, seed, budget, clm, mask = run
            return cfg.seeds.index(seed), sizes.index(size), -budget, -clm, mask

        return sorted(wanted, key=order)

    def _add(self, size, seed, budget, clm, mask, base=None, lr=0.0):
        """Add a run under the kind of name that the paper's models have on the hub.

        610m-clm-10k-mlm40-42k ends at 42k steps, of which 10k were CLM with a mask ratio of 40 % after it. A variant has
        the size and its slug instead: 610m-mixed-1-1-42k.
        """
        mlm, total = f"mlm{100 * mask:.3g}", budget + (self.longest if base else 0)
        parts = [f"clm-{thousands(clm)}"] * (clm > 0) + [f"{mlm}-{thousands(total)}"] * (clm < budget)
        if base:
            parts.insert(0, f"{'clm' if base.clm else mlm}-dec{thousands(self.longest)}")
        first = trunk = size
        if size in self.named:
            first, parts = self.size, [size, thousands(budget)]
            ours, usual = self.shape[size][0], self.shape[self.size][0]
            trunk = self.size if all(ours[k] == usual[k] for k in ours.keys() - {*SETTINGS}) else size
        name = "-".join([first, *parts, *[f"lr-{lr:g}"] * (lr > 0), *[f"seed-{seed}"] * (seed != self.seed)])
        if name in self.runs:
            raise DataError(f"two runs would be called {name}: give a variant another name")
        settings = self.continued if base else self.shape[size][0]
        warmup = min(settings.warmup_steps, budget - 1)  # if the budget is too short, all after the warmup decays
        decay, folder = min(settings.decay_steps, budget - warmup), Path(self.cfg.out_dir, "runs", name)
        run = Run(name, folder, size, budget, clm, mask, seed, warmup, decay, trunk, base, lr)
        for other in self.runs.values():
            if (steps := shared_steps(run, other)) > run.start:
                run.parent, run.start = other, steps
        self.runs[name] = run

    def train_args(self, size, lr=0.0, continues=False):
        """Return the arguments of train.py that all runs of a size share; lr: 0 leaves train.py's own."""
        shared = shlex.split(f"{self.cfg.train} {self.config_of[size]}")
        return [*shared, *[f"--lr={lr}"] * (lr > 0), *shlex.split(self.cfg.continue_args if continues else "")]

    def pure(self, clm):
        """Return the run of a pure objective (clm: 0 or `longest`) that every experiment has."""
        variant = (self.size, self.longest, clm, self.cfg.mask_ratios[0], None, 0)
        return next(run for run in self.runs.values() if run.variant == variant and run.seed == self.seed)

    def points(self):
        """Return the fine-tuning runs as (model, task, learning rate, seed).

        With choose_once, those that choose a rate are first. The rate of the others is None, which is the chosen one.
        """
        cfg, (seed, *seeds) = self.cfg, self.cfg.finetune_seeds
        if not cfg.choose_once:
            return grid(self.models, cfg.tasks, cfg.finetune_lrs, cfg.finetune_seeds)
        search = grid([m for m in self.models if m.run.seed == self.seed], cfg.tasks, cfg.finetune_lrs, [seed])
        others = grid([m for m in self.models if m.run.seed != self.seed], cfg.tasks, [None], [seed])
        return search + others + grid(self.models, cfg.tasks, [None], seeds)


def shared_steps(a, b):
    """Return how many steps two runs have in common: the same start, data, masks and learning rate.

    0 if that is no more than the warmup, whose few steps are not worth a checkpoint.
    """
    if (a.trunk, a.seed, a.base, a.warmup) != (b.trunk, b.seed, b.base, b.warmup) or a.lr or b.lr:
        return 0
    steps = a.budget - 1
    if a.budget != b.budget:  # then their learning rates part where the first one decays
        steps = min(a.budget - max(1, a.decay), b.budget - max(1, b.decay))
    if (a.size, a.clm, a.mask) != (b.size, b.clm, b.mask):
        steps = min(steps, a.clm, b.clm)
    return steps if steps > a.warmup else 0


def slug(name):
    """Return the name of a variant as a part of file names: mixed-1-1 of "mixed 1:1"."""
    return re.sub("[^a-z0-9._]+", "-", name.lower()).strip("-.")


def vocab_size(data):
    """Return the vocabulary of a prepared folder; of one that is not there yet, what it is likely to be."""
    if Path(data).exists():
        return load_meta(data)["tokenizer"]["vocab_size"]
    return 4096 if data == EMBEDDED_FOLDER else 128_256  # Llama 3's


def thousands(steps):
    return f"{steps // 1000}k" if steps % 1000 == 0 else f"{steps}"
