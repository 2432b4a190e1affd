"""Pretrain a text encoder: causal LM (CLM), masked LM (MLM), or CLM followed by MLM from `switch_step` on.

    python train.py                                                        # the demo: minutes on a laptop's CPU
    torchrun --standalone --nproc_per_node=8 train.py config/610m.py --switch_step=10000

The settings are the assignments below. Config files and --key=value change them.
"""

import math
import signal
import sys
import time
from functools import lru_cache
from importlib.util import find_spec

import torch
import torch.distributed as dist

import checkpoint
import configurator
import run
import runtime
from data import validation
from data.files import lock_folder
from data.loader import make_batches
from data.objective import CLM, MLM, add_step, by_objective, look_ahead, micro_batches, names_of, phase_of
from data.prepare import prepare_embedded
from data.shards import changed_shard_in_background, load_data, load_tokenizer
from errors import Damaged, DataError, exit_with_message, progress
from eval.plot import print_end, print_losses, print_start
from eval.sample import print_examples
from model import PRESETS, PretrainingLoss, Transformer, why_not_triton

# --- run ---
out_dir = "out/demo"  # where config.json, metrics.jsonl, checkpoints and the figure go
resume = False  # continue from the newest checkpoint in out_dir; start anew where there is none
branch_from = ""  # another run's checkpoint: take its weights, optimizer and step, then follow these settings
init_from = ""  # a checkpoint or a hub model: take its weights only and start at step 0 (continued pretraining)
# --- data and objective ---
data = "data/prepared/embedded"  # a folder of data.prepare (this one is made if missing), or a mixture: a:0.7,b:0.3
verify_data = True  # compute the checksums of the data while the run trains, and stop if one is wrong
max_steps = 650  # the budget, in optimizer steps
switch_step = 200  # steps before it are CLM, from it on MLM; 0 = pure MLM, max_steps = pure CLM
clm_windows = 0.0  # from switch_step on, the fraction of each step's windows that are CLM; the others are MLM
mask_ratio = 0.4  # fraction of a window's tokens that MLM hides and predicts
predict_from = "mask"  # which position predicts a hidden token: mask = its own, before = the one before it
mask_proportions = (1.0, 0.0, 0.0)  # of the hidden tokens, those shown as the mask token, as a random one, unchanged
window_split = "none"  # cut windows into parts that do not see each other: none, random (one cut), document (at eos)
# --- model ---
model = "demo"  # the shape: demo, 210m, 610m, 1b, or origin (that of init_from); the fields below change it, 0 keeps it
n_layer = 0  # Transformer blocks
n_head = 0  # query heads
n_kv_head = 0  # key and value heads
d_model = 0  # width of the hidden states
d_ff = 0  # hidden width of the MLP
seq_len = 0  # tokens in a window
vocab_size = 0  # rows of the embedding; 0 = the tokenizer's
rope_theta = 0.0  # base of the rotary positions
norm_eps = 0.0  # epsilon of the norms
tie_embeddings = False  # use the input embedding as the output head
# --- optimization ---
loss = "fused"  # fused, or plain: the same as a formula in model.py, for experiments with the loss; slower
optimizer = "adamw"  # adamw, or muon: Muon for the matrices of the blocks, AdamW for all other parameters
global_batch_tokens = 4096  # tokens of one optimizer step, over all processes and micro-steps
micro_batch = 32  # windows per process and micro-step, at most
lr = 3e-3  # peak learning rate
embedding_lr_scale = 1.0  # the learning rate of the embedding is this times lr
warmup_steps = 50  # linear warmup from 0
decay_steps = 200  # linear decay to 0 over the last steps; constant in between (WSD)
beta1 = 0.9  # AdamW
beta2 = 0.95  # AdamW
eps = 1e-8  # AdamW
weight_decay = 0.1  # on all parameters
grad_clip = 1.0  # largest norm of the gradient
seed = 1  # of the initial weights, the order of the data and the masks
# --- logging and checkpoints, in steps ---
log_interval = 10  # a line in metrics.jsonl
eval_interval = 50  # both validation losses
eval_windows = 64  # windows of the validation set, always the same ones with the same masks
checkpoint_interval = 100  # a checkpoint; also at a switch, at the end, on Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP
keep_last = 2  # how many of the newest checkpoints to keep; at least 2 until the run ends
keep_steps = ()  # steps whose checkpoints are made and kept, for later runs to branch from; also that of switch_step
wandb_project = ""  # also log to this Weights & Biases project
# --- machine ---
device = "auto"  # cuda where there is one, else cpu
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 where the device has it
attention = "auto"  # triton, sdpa, or reference: the formula, for which attention_mask() in model.py decides
compile = False  # torch.compile the blocks and the loss: pays off on a GPU, costs more than it gains in a short run
recompute = False  # activation checkpointing: less memory, about a third more compute
shard = False  # share weights, gradients and optimizer over the processes, for models that do not fit one GPU
deterministic = False  # bit-for-bit reproducible on a GPU too, slower; always on on a CPU


# ----------------------------------------------------------------------------
# The schedule


def objective(step, window, n_windows, cfg):
    """Return the objective of window number `window`, of `n_windows`, in step number `step`. Nothing else decides it.

    It is one of data/objective.py, or None to leave the window out.
    """
    if step < cfg.switch_step or window < round(cfg.clm_windows * n_windows):
        return CLM()
    return MLM(cfg.mask_ratio, cfg.predict_from, cfg.mask_proportions)


def learning_rate(step, cfg):
    """The learning rate of step number `step`, from 0: linear warmup, constant, linear decay to 0 (WSD)."""
    warmup = (step + 1) / max(1, cfg.warmup_steps)
    decay = (cfg.max_steps - step) / max(1, cfg.decay_steps)
    return cfg.lr * min(1.0, warmup, decay)


# ----------------------------------------------------------------------------
# What can be wrong with the settings

SCHEDULE = "switch_step warmup_steps decay_steps"
LIMITS = [
    ("at least", 1, "max_steps global_batch_tokens micro_batch eval_windows keep_last"),
    ("at least", 1, "log_interval eval_interval checkpoint_interval"),
    ("at least", 0, f"{SCHEDULE} seed clm_windows mask_proportions vocab_size beta1 beta2 eps weight_decay"),
    ("above", 0, "lr embedding_lr_scale grad_clip mask_ratio keep_steps"),
    ("below", 1, "beta1 beta2 clm_windows mask_ratio"),
    ("below", 2**63, "seed"),
]
CHOICES = {
    "model": [*PRESETS, "origin"],
    "window_split": ["none", "random", "document"],
    "predict_from": ["mask", "before"],
    "loss": ["fused", "plain"],
    "optimizer": ["adamw", "muon"],
    "attention": ["auto", "triton", "sdpa", "reference"],
}


def check(cfg):
    """Yield what does not fit in the settings, one sentence each."""
    yield from configurator.value_problems(cfg, LIMITS, CHOICES)
    yield from runtime.device_problems(cfg)
    shown = cfg.mask_proportions
    if len(shown) != 3 or abs(sum(shown) - 1) > 1e-6:
        yield f"mask_proportions={shown}: must be 3 numbers with sum 1"
    needed = max(cfg.switch_step, cfg.warmup_steps + cfg.decay_steps)
    if needed > cfg.max_steps >= 1:
        shorter = " ".join(f"--{name}={cfg[name] * cfg.max_steps // (2 * needed)}" for name in SCHEDULE.split())
        yield f"max_steps={cfg.max_steps}: the schedule has {needed} steps; {shorter} fits"
    if cfg.loss == "fused" and runtime.loss_is_edited():
        yield "loss=fused: it differs from --loss=plain. Edit `plain_loss` or `logits` in model.py, give --loss=plain"
    if cfg.wandb_project and not find_spec("wandb"):
        yield "wandb_project: needs the wandb package (pip install wandb)"
    if cfg.branch_from and cfg.init_from:
        yield "branch_from and init_from: give one of them"
    _, source = run.origin(cfg)
    why = checkpoint.problem(source) if source else ""
    if why:
        yield why
    if cfg.model == "origin" and not source:
        yield "model=origin: give init_from or branch_from, whose shape it is"
    elif cfg.model in PRESETS or (cfg.model == "origin" and not why):
        config = run.model_config(cfg, vocab_size=128)
        yield from config.problems()
        if cfg.attention != "reference" and runtime.attention_is_edited(config.seq_len):
            yield f"attention={cfg.attention}: `attention_mask` in model.py is edited, give --attention=reference"
        if cfg.attention == "triton":
            machine = runtime.resolve_auto(cfg)
            dtype = getattr(torch, machine.dtype, None)
            if why_not := why_not_triton(machine.device, config.head_dim, dtype):
                yield f"attention=triton: {why_not}"
        yield from run.batch_problems(cfg, config.seq_len)
        yield from run.conflicts(cfg)
        if not why:
            yield from run.start_problems(cfg, config)


# ----------------------------------------------------------------------------
# The parts of a run


@exit_with_message()
def main():
    try:
        train(runtime.resolve_auto(configurator.load(__file__, sys.argv[1:], check)))
    except torch.OutOfMemoryError as error:
        smaller = "Try a smaller --micro_batch, then --recompute=True; on several GPUs also --shard=True"
        sys.exit(f"{error}\nThis run does not fit into the GPU's memory. {smaller}")
    except OSError as error:
        sys.exit(f"{error}. Fix this, then add --resume=True to continue from the newest checkpoint, if there is one")


def open_folders(cfg, rank, world_size):
    """Lock out_dir and open the data, of which rank 0 prepares the default ones.

    Returns (the lock, the Data, tokenizer, the model's config, the Batches of training, those of validation).
    """
    lock = lock_folder(cfg.out_dir) if rank == 0 else None
    if rank == 0:
        prepare_embedded(cfg.data)
    problems = list(check(cfg)) if rank == 0 else []  # again, now with the data and the lock
    if problems:
        raise DataError("; ".join(problems))
    if world_size > 1:
        dist.barrier()
    data = load_data(cfg.data)
    tokenizer = load_tokenizer(data)
    config = run.model_config(cfg, tokenizer.vocab_size)
    return lock, data, tokenizer, config, *make_batches(cfg, data, tokenizer, config.seq_len)


def make_model(cfg, config, device, sharded):
    """Return the Transformer and its PretrainingLoss. The CPU draws the weights: they are the same on every machine.

    sharded: the weights, of which each process has a part, have no values before `run.restore`.
    """
    torch.manual_seed(cfg.seed)
    with torch.device("meta" if sharded else "cpu"):
        transformer = Transformer(config)
    if not sharded:
        transformer.to(device)
    transformer.compute_dtype = getattr(torch, cfg.dtype)
    transformer.recompute = cfg.recompute
    transformer.attention_backend = cfg.attention
    loss_module = PretrainingLoss(transformer, plain=cfg.loss == "plain")
    others = {*loss_module.parameters()} - {*transformer.parameters()}
    if any(p.requires_grad for p in others):
        raise DataError(
            "PretrainingLoss has weights of its own, which nothing trains or saves: put them into Transformer"
        )
    if cfg.compile:
        loss_module.compile_parts()
    if sharded:
        runtime.shard(loss_module, device)
    return transformer, loss_module


def make_optimizers(transformer, cfg):
    """Return {name: optimizer}. Each parameter belongs to one of them.

    The schedule sets the learning rate of every group: lr, times the group's `lr_scale`. A group that has a rate of its
    own, and no scale, gets the scale that this is.
    """
    matrices = []
    if cfg.optimizer == "muon":
        matrices = [p for p in transformer.blocks.parameters() if p.ndim == 2]
    embedding = transformer.embedding.weight
    apart = {embedding, *matrices}
    others = [p for p in transformer.parameters() if p not in apart]
    groups = [{"params": [embedding], "lr_scale": cfg.embedding_lr_scale}, {"params": others}]
    betas = (cfg.beta1, cfg.beta2)
    optimizers = {"adamw": torch.optim.AdamW(groups, cfg.lr, betas, cfg.eps, cfg.weight_decay, fused=True)}
    if matrices:  # with updates of the size of AdamW's, so that one learning rate serves both (arXiv 2502.16982)
        optimizers["muon"] = torch.optim.Muon(matrices, cfg.lr, cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
    grouped = [p for optimizer in optimizers.values() for group in optimizer.param_groups for p in group["params"]]
    if sorted(map(id, grouped)) != sorted(map(id, transformer.parameters())):
        raise ValueError("make_optimizers: each parameter must be in one group of one optimizer")
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group.setdefault("lr_scale", group["lr"] / cfg.lr)
    return optimizers


@torch.no_grad()
def evaluate(loss_module, val_batches, objectives, cfg, device, rank, world_size):
    """Return the validation loss of each objective, in nats per predicted token. The processes share the windows.

    That of a mixture is the mean over its sources, weighted by their fractions; the losses of each source follow.
    objectives: those of data/validation.py. They are the same whatever the run trains.
    """
    loss_module.eval()
    values = {}
    for what in objectives:
        name = f"val_{what.name}_loss"
        losses = {}
        for folder, (_, batches) in val_batches.items():
            total = torch.zeros(2, dtype=torch.float64, device=device)  # sum of losses, predicted tokens
            windows = range(batches.windows_per_step)
            for first in range(0, len(windows), world_size * cfg.micro_batch):
                own = windows[first + rank * cfg.micro_batch :][: cfg.micro_batch]
                batch = runtime.to_device(batches.batch(0, what, own or [0]), device)
                with torch.compiler.set_stance("force_eager"):  # no second compilation for the last, smaller batch
                    found = torch.stack(loss_module(batch, what.causal))  # also without windows: others may need shards
                if own:
                    total += found
            if world_size > 1:
                dist.all_reduce(total)
            losses[folder] = (total[0] / total[1]).item()
        values[name] = sum(fraction * losses[folder] for folder, (fraction, _) in val_batches.items())
        if len(losses) > 1:
            values[f"{name}_by_source"] = losses
    loss_module.train()
    return values


def save(cfg, facts, step, trained, log, transformer, optimizers):
    """Write a checkpoint and delete those that are not to be kept.

    With shards all processes call this, to gather them. log: None on all but rank 0.
    """
    model = runtime.whole(transformer.state_dict())
    states = {name: runtime.whole(optimizer.state_dict()) for name, optimizer in optimizers.items()}
    if log is None:
        return
    if transformer.config.tie_embeddings:
        model["head.weight"] = model["embedding.weight"]
    state = dict(facts, **trained, step=step, log=log.sync(), model=model, optimizer=states)
    checkpoint.save(checkpoint.path_of(cfg.out_dir, step), state)
    keep = cfg.keep_last if step == cfg.max_steps else max(2, cfg.keep_last)  # the next step might diverge
    checkpoint.prune(cfg.out_dir, step, keep, (*cfg.keep_steps, cfg.switch_step))


# ----------------------------------------------------------------------------
# The parts of a step


def forward_backward(ddp, batches, parts, names, device):
    """Add up the losses of a step's micro-batches and send each backward.

    A sum goes backward: what to divide it by is known only after the last one. names: of the step's objectives. Returns
    fp64 (names, 2): for each the sum of the losses and the number of predicted tokens, of this process.
    """
    sums = torch.zeros(len(names), 2, dtype=torch.float64, device=device)
    for number, (what, _, counts) in enumerate(parts, 1):
        ddp.require_backward_grad_sync = number == len(parts)  # DDP sums them after the last one, shards after each
        loss_sum, count = ddp(runtime.to_device(next(batches), device), what.causal)
        if not counts:  # another process trains this window: take part in the exchange, and add nothing
            loss_sum.backward(torch.zeros_like(loss_sum))
            continue
        loss_sum.backward()
        sums[names.index(what.name)] += torch.stack((loss_sum.detach(), count))
    return sums


def scale_and_clip(transformer, sums, cfg, world_size):
    """Make the gradient that of the mean loss over all predicted tokens of the step, and clip it.

    So far it is that of the summed loss, averaged over the processes. sums: see `forward_backward`. Returns them over
    all processes, on the CPU, and the norm before clipping. The CPU waits for a GPU here.
    """
    if world_size > 1:
        dist.all_reduce(sums)
    grads = [p.grad for p in transformer.parameters() if p.grad is not None]  # others are frozen, or had no part
    norm = runtime.gather(torch.nn.utils.get_total_norm(grads))
    *values, norm = torch.cat((sums.flatten(), norm[None])).tolist()  # together, so that the CPU waits once
    sums = torch.tensor(values, dtype=torch.float64).view(-1, 2)
    to_mean = world_size / max(1.0, sums[:, 1].sum().item())
    grad_norm = norm * to_mean
    clip = min(1.0, cfg.grad_clip / (grad_norm + 1e-6))
    torch._foreach_mul_(grads, to_mean * clip)
    return sums, grad_norm


def finite_loss(cfg, step, phase, sums, grad_norm):
    """Return the mean loss over all predicted tokens of a step. Stops the run if an update would spoil the weights."""
    loss_sum, predicted = sums.sum(0).tolist()
    where = f"step {step + 1} ({phase})"
    if not predicted:
        sys.exit(f"{where}: no token is predicted. Are the windows or documents too short for the objective?")
    loss = loss_sum / predicted
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        saved = checkpoint.steps(cfg.out_dir)
        again = f"Branch off a checkpoint, the newest is of step {saved[-1]}" if saved else "Start again"
        message = f"{where}: loss {loss}, gradient norm {grad_norm}. Stopped before the update"
        sys.exit(f"{message}. {again}; a lower lr often helps.")
    return loss


def update(optimizers, lr, world_size):
    """Make a step of each optimizer, and forget the gradient."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=world_size == 1)  # DDP's gradients are views of its buckets and stay


def totals(trained):
    """Return what the log says of all steps so far. trained: see `run.restore`."""
    return dict(tokens=trained["tokens"], seconds=round(trained["seconds"], 2), flops=trained["flops"])


def describe_step(groups, names, sums):
    """Return what the log says of a step's objectives. groups: see `by_objective`. sums: of each of the names."""
    values = {}
    ratio = max(what.mask_ratio for what in groups)
    if ratio:
        values["mask_ratio"] = ratio
    if len(names) > 1:
        for name, (loss_sum, count) in zip(names, sums.tolist()):
            key = name.replace(" ", "_")
            values[f"{key}_loss"] = loss_sum / max(1.0, count)
    return values


# ----------------------------------------------------------------------------
# The run


def train(cfg):
    # Set-up. Under torchrun every process runs this file.
    device, rank, world_size = runtime.set_up(cfg.device, cfg.deterministic)
    sharded = cfg.shard and world_size > 1
    lock, data, tokenizer, config, train_batches, val_batches = open_folders(cfg, rank, world_size)
    transformer, loss_module = make_model(cfg, config, device, sharded)
    optimizers = make_optimizers(transformer, cfg)
    first, trained, resumed = run.restore(cfg, transformer, optimizers, tokenizer, rank, world_size, sharded)
    facts = run.run_facts(cfg, config, data, tokenizer, device)  # for config.json and each checkpoint
    if device.type == "cuda" and cfg.attention == "auto":
        runtime.set_attention(transformer, device, facts["versions"], resumed)

    @lru_cache(8)
    def groups_of(step):
        return by_objective(objective, cfg, train_batches.windows_per_step, step)

    def parts_of(step):
        return micro_batches(groups_of(step), cfg.micro_batch, rank, world_size)

    sampled, predict_from = look_ahead(groups_of.__wrapped__, cfg.max_steps, train_batches)  # past the cache
    steps = range(first, cfg.max_steps)
    work = ((step, what, windows) for step in steps for what, windows, _ in parts_of(step))
    batches = runtime.prefetch(train_batches.batch, work)
    ddp = loss_module
    if world_size > 1 and not sharded and steps:
        what, windows, _ = parts_of(first)[0]
        ddp = runtime.wrap_ddp(loss_module, train_batches.batch(first, what, windows), what.causal, device)
    changed = changed_shard_in_background(data) if rank == 0 and cfg.verify_data else None
    log = run.open_records(facts, transformer.parameters(), world_size, resumed) if rank == 0 else None
    if rank == 0:
        rates = [learning_rate(step, cfg) for step in range(cfg.max_steps)]
        runtime.show(print_start, cfg, transformer, train_batches, sampled, rates, first, world_size, facts["versions"])
    evaluation = val_batches, validation.objectives(predict_from), cfg, device, rank, world_size
    if not resumed:
        values = evaluate(loss_module, *evaluation)
        if log:
            log.write(step=first, phase=phase_of(groups_of(min(first, cfg.max_steps - 1))), **totals(trained), **values)

    received = runtime.stop_signals()
    phase = ""
    bar = progress(total=cfg.max_steps, initial=first, unit="steps", mininterval=0.5, disable=rank > 0)
    done, stopping = first, False  # done: how many steps; None while the weights change
    try:
        for step in steps:
            last = step + 1 == cfg.max_steps
            run.check_data(changed, trained, first, last, received)
            started = time.perf_counter()
            groups = groups_of(step)
            names = names_of(groups)
            earlier, phase = phase, phase_of(groups)
            torch.manual_seed(hash((cfg.seed, step, rank)))  # of dropout, if you add it: a resumed run draws the same
            sums = forward_backward(ddp, batches, parts_of(step), names, device)
            torch.manual_seed(hash((cfg.seed, step)))  # of what an update draws: the same on all processes
            sums, grad_norm = scale_and_clip(transformer, sums, cfg, world_size)
            loss = finite_loss(cfg, step, phase, sums, grad_norm)
            done = None
            lr = learning_rate(step, cfg)
            update(optimizers, lr, world_size)
            stopping = runtime.any_process(received, device, world_size)  # waits for the update of several GPUs
            add_step(trained["phases"], groups)
            trained["tokens"] += sum(map(len, groups.values())) * config.seq_len
            trained["seconds"] += time.perf_counter() - started
            trained["flops"] += runtime.step_flops(config, groups, cfg.window_split)
            done = step + 1
            if phase != earlier:
                before = dict(trained)  # the speed leaves out the first step of a phase, which compiles

            # Log and evaluate. Everything about a step is in the log before its checkpoint is made.
            few = len(trained["phases"]) < 5  # phases may also alternate, step by step
            switches = few and not last and phase_of(groups_of(step + 1)) != phase
            values = {}
            if (step + 1) % cfg.log_interval == 0 or last:
                seconds, tokens, flops = (trained[name] - before[name] for name in ("seconds", "tokens", "flops"))
                before = dict(trained)
                speed = round(tokens / seconds) if seconds else None
                parts = describe_step(groups, names, sums)
                values = dict(loss=loss, grad_norm=grad_norm, lr=lr, tokens_per_s=speed, **parts)
                mfu = runtime.utilization(cfg.dtype, flops / world_size, seconds, device)
                bar.set_postfix(phase=phase, loss=f"{loss:.3f}", tok_s=f"{speed or 0:,}", **mfu, refresh=False)
            if (step + 1) % cfg.eval_interval == 0 or last or switches:
                values |= evaluate(loss_module, *evaluation)
            if rank == 0 and values:
                log.write(step=step + 1, phase=phase, **totals(trained), **values)
                runtime.show(print_losses, bar, step + 1, phase, values)

            due = done % cfg.checkpoint_interval == 0 or done in cfg.keep_steps or last or switches or stopping
            if due and (rank == 0 or sharded):
                save(cfg, facts, done, trained, log, transformer, optimizers)
            if rank == 0 and (last or switches) and not sharded:
                runtime.show(print_examples, bar, done, phase, transformer, tokenizer, predict_from)
            bar.update()
            if stopping:
                break
    except Damaged:  # the data are wrong: what they trained must not be saved
        raise
    except Exception:
        if rank == 0 and done and done > first and not sharded:  # lose no finished step
            runtime.show(save, cfg, facts, done, trained, log, transformer, optimizers)
        raise

    if not stopping:  # a finished run, too, says so if its data have changed
        run.check_data(changed, trained, first, True, received)
    if rank == 0:
        runtime.show(print_end, cfg, bar, done, device)
    del ddp  # before its process group: the other order can deadlock in gloo's destructor
    runtime.leave(world_size)
    if stopping:
        sys.exit(128 + (received[-1] if received else signal.SIGTERM))


if __name__ == "__main__":
    main()
