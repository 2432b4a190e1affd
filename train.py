"""Pretrain a text encoder: causal LM (CLM), masked LM (MLM), or CLM followed by MLM from `switch_step` on.

    python train.py                                                        # the demo: minutes on a laptop's CPU
    torchrun --standalone --nproc_per_node=8 train.py config/610m.py --switch_step=10000

The settings are the assignments below. Config files and --key=value change them.
"""

import math
import sys

from errors import DataError, exit_with_message, show  # first: if torch is missing, it says how to install it

# isort: split
import torch
import torch.distributed as dist

import configurator
import runtime
from data.objective import CLM, MLM
from eval.plot import print_end, print_losses, print_start
from eval.sample import print_examples
from model import PretrainingLoss, Transformer
from run import Run, check

# --- run ---
out_dir = "out/demo"  # where config.json, metrics.jsonl, checkpoints and the figure go
resume = False  # continue from the newest checkpoint in out_dir; start anew where there is none
branch_from = ""  # another run's checkpoint: take its weights, optimizer and step, then follow these settings
init_from = ""  # a checkpoint or a hub model: take its weights only and start at step 0 (continued pretraining)
# --- data and objective ---
data = "data/prepared/embedded"  # a folder from data.prepare (this one is made if missing), or a mixture: a:0.7,b:0.3
verify_data = True  # compute the checksums of the data while the run trains, and stop if one is wrong
max_steps = 650  # the budget, in optimizer steps
switch_step = 200  # steps before it are CLM, from it on MLM; 0 = pure MLM, max_steps = pure CLM
clm_windows = 0.0  # from switch_step on, the fraction of each step's windows that are CLM; the windows take turns
mask_ratio = 0.4  # fraction of a window's tokens that MLM hides and predicts
predict_from = "mask"  # which position predicts a hidden token: mask = its own, before = the one before it (MNTP)
mask_proportions = (1.0, 0.0, 0.0)  # fractions of the hidden tokens: shown as [MASK], as a random token, unchanged
window_split = "none"  # cut windows into parts that do not see each other: none, random (one cut), document (at eos)
# --- model ---
model = "demo"  # demo, 210m, 610m, 1b, or origin (of init_from or branch_from); the fields below change it, 0 keeps it
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
global_batch_tokens = 4096  # tokens of one optimizer step, over all processes and micro-batches
micro_batch = 32  # windows that a process sends through the model at once, at most
lr = 3e-3  # peak learning rate
embedding_lr_scale = 1.0  # the learning rate of the embedding is this times lr
warmup_steps = 50  # linear warmup from 0
decay_steps = 200  # linear decay to 0 over the last steps; constant in between (WSD)
beta1 = 0.9  # AdamW
beta2 = 0.95  # AdamW
eps = 1e-8  # AdamW
weight_decay = 0.1  # on all parameters
grad_clip = 1.0  # largest norm of the gradient
seed = 1  # for the initial weights, the order of the data and the masks
# --- logging and checkpoints, in steps ---
log_interval = 10  # a line in metrics.jsonl
eval_interval = 50  # both validation losses
eval_windows = 64  # windows of the validation set, always the same ones with the same masks
checkpoint_interval = 100  # a checkpoint; also at a switch, at the end, on Ctrl-C, SIGTERM, SIGUSR1 and SIGHUP
keep_last = 2  # how many of the newest checkpoints to keep; at least 2 until the run ends
keep_steps = ()  # steps whose checkpoints are saved and kept, for later runs to branch off; also that of switch_step
# --- machine ---
device = "auto"  # cuda where there is one, else cpu
dtype = "auto"  # of activations: float32, bfloat16; auto = bfloat16 where the device has it
attention = "auto"  # triton, sdpa, or reference (the plain formula, which follows an edited attention_mask)
compile = False  # torch.compile the blocks and the loss: pays off on a GPU, costs more than it gains in a short run
recompute = False  # activation checkpointing: less memory, about a third more compute
shard = False  # shard weights, gradients and optimizer over the processes, for models that do not fit one GPU
deterministic = False  # bit-for-bit reproducible on a GPU too, slower; a CPU always is


# ----------------------------------------------------------------------------
# The schedule


def objective(step, window, n_windows, cfg):
    """Return the objective of window number `window` of the `n_windows` in step number `step`. Nothing else decides it.

    It is an objective of data/objective.py, or None to leave the window out.
    """
    if step < cfg.switch_step or (window + step) % n_windows < round(cfg.clm_windows * n_windows):
        return CLM()
    return MLM(cfg.mask_ratio, cfg.predict_from, cfg.mask_proportions)


def learning_rate(step, cfg):
    """Return the learning rate of a step, counted from 0: linear warmup, constant, linear decay to 0 (WSD)."""
    warmup = (step + 1) / max(1, cfg.warmup_steps)
    decay = (cfg.max_steps - step) / max(1, cfg.decay_steps)
    return cfg.lr * min(1.0, warmup, decay)


# ----------------------------------------------------------------------------
# The parts of a run


@exit_with_message()
def main():
    cfg = runtime.resolve_auto(configurator.load(__file__, sys.argv[1:], check))
    try:
        train(cfg)
    except torch.OutOfMemoryError as error:
        sys.exit(
            f"{error}\nThis run does not fit into the GPU's memory. Try a smaller --micro_batch, then "
            "--recompute=True; on several GPUs also --shard=True"
        )
    except OSError as error:
        sys.exit(
            f"{cfg.out_dir}: {error}. Fix this, then add --resume=True to continue from the newest checkpoint, if "
            "there is one"
        )


def make_model(cfg, run):
    """Return the Transformer and its PretrainingLoss. The CPU draws the weights, so they are the same on every machine.

    With --shard, each process holds a part of the weights. They get their values later, in `run.start`.
    """
    torch.manual_seed(cfg.seed)
    if run.sharded:
        with runtime.weights_on_meta():
            transformer = Transformer(run.config)
    else:
        transformer = Transformer(run.config).to(run.device)
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
    if run.sharded:
        runtime.shard(loss_module, run.device)
    return transformer, loss_module


def make_optimizers(transformer, cfg):
    """Return {name: optimizer}. Each parameter belongs to one of them.

    In each step, the learning rate of a group is that of the schedule times the group's `lr_scale`. A group without
    `lr_scale` gets lr_scale = its own `lr` / cfg.lr.
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
    if matrices:  # with updates as large as AdamW's, so that one learning rate serves both (arXiv 2502.16982)
        optimizers["muon"] = torch.optim.Muon(matrices, cfg.lr, cfg.weight_decay, adjust_lr_fn="match_rms_adamw")
    grouped = [p for optimizer in optimizers.values() for group in optimizer.param_groups for p in group["params"]]
    if sorted(map(id, grouped)) != sorted(map(id, transformer.parameters())):
        raise ValueError("make_optimizers: each parameter must be in one group of one optimizer")
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group.setdefault("lr_scale", group["lr"] / cfg.lr)
    return optimizers


# ----------------------------------------------------------------------------
# The parts of a step


def forward_backward(run, step):
    """Run the forward and backward passes of this process's micro-batches in a step.

    The gradient is that of the sum of the losses. It becomes that of the mean in `scale_and_clip`, when the number of
    predicted tokens of all processes is known. Returns fp64 (names, 2): for each of `run.names_of(step)`, the sum of
    the losses and the number of predicted tokens (or the sum of their weights) on this process.
    """
    parts = run.parts_of(step)
    names = run.names_of(step)
    sums = torch.zeros(len(names), 2, dtype=torch.float64, device=run.device)
    for number, part in enumerate(parts, 1):  # next_batch returns the batch of each part, in this order
        run.ddp_loss.require_backward_grad_sync = number == len(parts)  # DDP syncs after the last one, FSDP after each
        loss_sum, count = run.ddp_loss(run.next_batch(), part.causal)
        if not part.is_own:  # a window of another process: its gradient here is 0
            loss_sum.backward(torch.zeros_like(loss_sum))
            continue
        loss_sum.backward()
        sums[names.index(part.name)] += torch.stack((loss_sum.detach(), count))
    return sums


def scale_and_clip(transformer, sums, cfg, world_size):
    """Scale the gradient to that of the mean loss over all predicted tokens of the step, then clip it.

    Before this, it is that of the summed loss, averaged over the processes. sums: see `forward_backward`. Returns the
    sums over all processes, on the CPU, and the gradient norm before clipping. Here the CPU waits for the GPU.
    """
    if world_size > 1:
        dist.all_reduce(sums)
    grads = [p.grad for p in transformer.parameters() if p.grad is not None]  # frozen or unused weights have none
    norm = runtime.gather(torch.nn.utils.get_total_norm(grads))
    *values, norm = torch.cat((sums.flatten(), norm[None])).tolist()  # together, so that the CPU waits once
    sums = torch.tensor(values, dtype=torch.float64).view(-1, 2)
    to_mean = world_size / (sums[:, 1].sum().item() or 1.0)
    grad_norm = norm * to_mean
    clip = min(1.0, cfg.grad_clip / (grad_norm + 1e-6))
    torch._foreach_mul_(grads, to_mean * clip)
    return sums, grad_norm


def finite_loss(run, step, sums, grad_norm):
    """Return the mean loss over all predicted tokens of a step. Exit if it, or the gradient norm, is not finite."""
    loss_sum, predicted = sums.sum(0).tolist()
    where = f"step {step + 1} ({run.phase_of(step)})"
    if not predicted:
        sys.exit(f"{where}: no token is predicted. Are the windows or documents too short for the objective?")
    loss = loss_sum / predicted
    if not (math.isfinite(loss) and math.isfinite(grad_norm)):
        message = f"{where}: loss {loss}, gradient norm {grad_norm}. Stopped before the update"
        sys.exit(f"{message}. {run.restart_advice()}")
    return loss


def update(optimizers, lr, world_size):
    """Take a step with each optimizer, and clear the gradient."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=world_size == 1)  # DDP's gradients are views of its buckets and stay


# ----------------------------------------------------------------------------
# The run


def train(cfg):
    run = Run(cfg, objective)  # the owner of machine, folder, data and records; each process of torchrun has one
    transformer, loss_module = make_model(cfg, run)
    optimizers = make_optimizers(transformer, cfg)
    run.start(transformer, loss_module, optimizers)  # loads the checkpoint that it starts from, if there is one
    if run.rank == 0:
        show(print_start, run, [learning_rate(step, cfg) for step in range(cfg.max_steps)])
    if not run.resumed:
        run.write(run.evaluate(loss_module))

    with run:  # after an error, it saves the newest step, if that is complete
        for step in run.steps():  # ends early after Ctrl-C or another signal
            torch.manual_seed(hash((cfg.seed, step, run.rank)))  # for dropout, if you add it
            sums = forward_backward(run, step)
            sums, grad_norm = scale_and_clip(transformer, sums, cfg, run.world_size)
            loss = finite_loss(run, step, sums, grad_norm)
            lr = learning_rate(step, cfg)
            torch.manual_seed(hash((cfg.seed, step)))  # for an update that draws numbers: the same everywhere
            run.is_complete = False  # from here on, weights, counts and log are at different steps
            update(optimizers, lr, run.world_size)
            run.finish_step(step)

            values = {}
            if run.is_due(cfg.log_interval):
                values = dict(loss=loss, grad_norm=grad_norm, lr=lr, **run.throughput(loss), **run.losses(step, sums))
            if run.is_due(cfg.eval_interval) or run.switches:
                values |= run.evaluate(loss_module)
            run.write(values)
            run.is_complete = True  # now they are all at this step, so it may be saved
            if run.rank == 0:
                show(print_losses, run, values)
            if run.is_due(cfg.checkpoint_interval) or run.switches or run.stopping or run.step in cfg.keep_steps:
                run.save()
            if run.rank == 0 and (run.last or run.switches) and not run.sharded:
                show(print_examples, run)

    if run.rank == 0:
        show(print_end, run)
    run.end()


if __name__ == "__main__":
    main()
