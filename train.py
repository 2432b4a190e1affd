"""Pretrain a text encoder: causal LM, masked LM, or causal first and masked from `switch_step` on.

    python train.py                                                        # the demo: minutes on a laptop's CPU
    torchrun --standalone --nproc_per_node=8 train.py config/610m.py config/splits/42k-25.py

The settings are the assignments below; config files and --key=value change them.
"""

import errno
import math
import os
import signal
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import checkpoint
import configurator
from data.loader import Batches, TokenStream, prefetch, to_device
from data.prepare import EMBEDDED_FOLDER, prepare_embedded
from data.shards import load_meta
from data.tokenizer import Tokenizer
from errors import Damaged, DataError
from eval.plot import plot_run, summary
from eval.sample import examples
from model import PRESETS, PretrainingLoss, Transformer
from runtime import RESUME_MAY_CHANGE, flops_per_token, peak_flops, resolve_auto, set_up

# --- run ---
out_dir = "out/demo"  # where config.json, metrics.jsonl, checkpoints and the figure go
resume = False  # go on from the newest checkpoint in out_dir; begin where there is none
branch_from = ""  # a checkpoint of another run: take its weights, optimizer and step, then follow these settings
init_from = ""  # a checkpoint, or a model of the hub: take its weights only and begin at step 0 (continued pretraining)
# --- data and objective ---
data = "data/prepared/embedded"  # a folder made by data/prepare.py; this one is made when it is missing
max_steps = 650  # the budget, in optimizer steps
switch_step = 200  # steps before it are CLM, from it on MLM; 0 = MLM only, max_steps = CLM only
mask_ratio = 0.4  # share of a window's tokens that MLM hides and predicts
mask_proportions = (1.0, 0.0, 0.0)  # of those: shown as the mask token, as a random token, unchanged
window_split = "none"  # attention across a window: none (all of it), random (cut in two), document (cut at each eos)
# --- model ---
model = "demo"  # the shape: demo, 210m, 610m, 1b, or origin, init_from's; the fields below change it, 0 keeps it
n_layer = 0  # Transformer blocks
n_head = 0  # query heads
n_kv_head = 0  # key and value heads
d_model = 0  # width
d_ff = 0  # hidden width of the MLP
seq_len = 0  # tokens in a window
vocab_size = 0  # rows of the embedding; 0 = the tokenizer's
rope_theta = 0.0  # base of the rotary positions
norm_eps = 0.0  # epsilon of the norms
tie_embeddings = False  # use the input embedding as the output head
# --- optimization ---
global_batch_tokens = 4096  # tokens of one optimizer step, over all processes and micro-steps
micro_batch = 32  # windows per process and micro-step, at most; the largest divisor of the process's share is used
lr = 3e-3  # peak learning rate
warmup_steps = 50  # linear warmup from 0
decay_steps = 200  # linear decay to 0 over the last steps; constant in between (WSD)
beta1 = 0.9  # AdamW
beta2 = 0.95  # AdamW
eps = 1e-8  # AdamW
weight_decay = 0.1  # AdamW, on all parameters
grad_clip = 1.0  # largest norm of the gradient
seed = 1  # of the initial weights, the order of the data and the masks
# --- logging and checkpoints, in steps ---
log_interval = 10  # a line of metrics.jsonl
eval_interval = 50  # both validation losses
eval_windows = 64  # windows of the validation set, always the same ones with the same masks
checkpoint_interval = 100  # a checkpoint; also at the end, on Ctrl-C and on SIGTERM
keep_last = 2  # how many of the newest checkpoints to keep
keep_steps = ()  # steps whose checkpoints are made and kept, for later runs to branch from
wandb_project = ""  # also log to this Weights & Biases project
# --- machine ---
device = "auto"  # cuda where there is one, else cpu
dtype = "auto"  # of activations: float32, bfloat16, float16 (no loss scale); auto = bfloat16 where the device has it
compile = False  # torch.compile the blocks and the loss: pays on a GPU, costs more than it gains in a short run
recompute = False  # activation checkpointing: less memory, about a third more compute
deterministic = False  # bit-for-bit reproducible on a GPU too, slower; always on on a CPU

ROOT = Path(__file__).resolve().parent


# ----------------------------------------------------------------------------
# Settings: what follows from them, and what is wrong with them


def check(s):
    """What does not fit in the settings s, a sentence each."""
    found, world = [], int(os.environ.get("WORLD_SIZE", 1))

    def need(fits, sentence):
        if not fits:
            found.append(sentence)

    lowest = dict(max_steps=1, switch_step=0, warmup_steps=0, decay_steps=0, global_batch_tokens=1, micro_batch=1,
                  seed=0, log_interval=1, eval_interval=1, eval_windows=1, checkpoint_interval=1, keep_last=1,
                  beta1=0, beta2=0, eps=0, weight_decay=0, vocab_size=0)  # fmt: skip
    for name, low in lowest.items():
        need(s[name] >= low, f"{name}={s[name]}: must be at least {low}")
    for name in ("lr", "grad_clip"):
        need(s[name] > 0, f"{name}={s[name]}: must be above 0")
    need(s["seed"] < 2**63, f"seed={s['seed']}: must be below 2**63")
    need(not Path(s["out_dir"]).is_file(), f"out_dir={s['out_dir']}: is a file")
    need(0 < s["mask_ratio"] < 1, f"mask_ratio={s['mask_ratio']}: must be above 0 and below 1")
    need(max(s["beta1"], s["beta2"]) < 1, f"beta1={s['beta1']}, beta2={s['beta2']}: must be below 1")
    choices = dict(model=[*PRESETS, "origin"], window_split=["none", "random", "document"], device=["auto", "cpu", "cuda"],
                   dtype=["auto", "float32", "bfloat16", "float16"])  # fmt: skip
    for name, values in choices.items():
        need(s[name] in values, f"{name}={s[name]}: must be one of {', '.join(values)}")
    need(s["switch_step"] <= s["max_steps"], f"switch_step={s['switch_step']} is beyond max_steps={s['max_steps']}")
    need(s["warmup_steps"] + s["decay_steps"] <= s["max_steps"],
         f"warmup_steps={s['warmup_steps']} and decay_steps={s['decay_steps']} are more than max_steps={s['max_steps']}")
    p = s["mask_proportions"]
    need(len(p) == 3 and min(p) >= 0 and abs(sum(p) - 1) < 1e-6, f"mask_proportions={p}: must be 3 shares, sum 1")
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    need(resolve_auto(s)["device"] != "cuda" or local_rank < gpus, f"device=cuda: process {local_rank} here, but {gpus} GPUs")
    need(not s["wandb_project"] or find_spec("wandb"), "wandb_project: needs the wandb package (pip install wandb)")
    need(not (s["branch_from"] and s["init_from"]), "branch_from and init_from: give one of them")
    begun = s["resume"] and checkpoint.steps(s["out_dir"])  # then these two are not needed any more
    need(not s["branch_from"] or begun or Path(s["branch_from"]).is_file(), f"branch_from={s['branch_from']}: no such file")
    why = checkpoint.problem(s["init_from"]) if not begun and (s["init_from"] or s["model"] == "origin") else ""
    need(not why, f"init_from: {why}")

    if s["model"] not in choices["model"] or why:
        return found
    config = checkpoint.model_config(s, vocab_size=128)
    found += config.problems()
    T = max(1, config.seq_len)
    n_windows, rest = divmod(s["global_batch_tokens"], T)
    need(not rest and n_windows and not n_windows % world,
         f"global_batch_tokens={s['global_batch_tokens']}: must be a multiple of seq_len * processes = {T} * {world}")
    need(round(s["mask_ratio"] * T), f"mask_ratio={s['mask_ratio']}: masks not one token of {T}")
    need(s["window_split"] != "random" or T >= 24, f"window_split=random: needs seq_len of at least 24, got {T}")

    meta = None
    if s["data"] != EMBEDDED_FOLDER or Path(s["data"]).exists():  # the default's absence is mended later
        try:
            meta = load_meta(s["data"])
        except DataError as error:
            found.append(str(error))
    if meta:
        vocab = meta["tokenizer"]["vocab_size"]
        need(not 0 < s["vocab_size"] < vocab, f"vocab_size={s['vocab_size']}: the tokenizer of {s['data']} needs {vocab}")
        for split, tokens in (("train", n_windows * T), ("val", T)):
            have = meta["splits"][split]["tokens"]
            need(have >= tokens, f"{s['data']}: {have} {split} tokens are fewer than the {tokens} of one batch")

    same = {name: value for name, value in resolve_auto(s).items() if name not in RESUME_MAY_CHANGE} if s["resume"] else None
    return found + [*checkpoint.conflicts(s["out_dir"], same, meta and meta["fingerprint"])]


def is_causal(step):
    """Whether step number `step`, from 0, is CLM. The phases of a run are decided on this line and nowhere else."""
    return step < switch_step


def learning_rate(step):
    """Of step number `step`, from 0: linear warmup, constant, linear decay to 0 (WSD)."""
    rising = (step + 1) / max(1, warmup_steps)
    falling = (max_steps - step) / max(1, decay_steps)
    return lr * min(1.0, rising, falling)


# ----------------------------------------------------------------------------
# The run


def main():
    settings = resolve_auto(configurator.load(__file__, sys.argv[1:], check))
    try:
        train(settings)
    except (Damaged, DataError) as error:
        sys.exit(str(error))
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        sys.exit(f"the disk is full ({error}). The checkpoints in {settings['out_dir']} are whole; make room and go on "
                 "from the newest with --resume=True")  # fmt: skip


def train(settings):
    # Processes and devices. Under torchrun every process runs this file.
    where, rank, world = set_up(settings["device"], settings["deterministic"])
    on_gpu = where.type == "cuda"
    say = tqdm.write if rank == 0 else lambda *_: None

    # Data.
    if rank == 0 and not Path(settings["data"]).exists():  # the default's: check let no other pass
        prepare_embedded()
        configurator.load(__file__, sys.argv[1:], check)  # again, now with the data
    if world > 1:
        dist.barrier()
    globals().update(settings)
    meta = load_meta(data)
    rank_bytes = (Path(data) / "tokenizer.tiktoken").read_bytes()
    tokenizer = Tokenizer.from_state(meta["tokenizer"], rank_bytes)
    config = checkpoint.model_config(settings, tokenizer.vocab_size)
    T, train_stream, val_stream = config.seq_len, TokenStream(data, meta, "train"), TokenStream(data, meta, "val")
    options = dict(window_split=window_split, mask_ratio=mask_ratio, mask_proportions=mask_proportions)
    train_batches = Batches(train_stream, tokenizer, seed, T, global_batch_tokens // T, **options)
    val_batches = Batches(val_stream, tokenizer, 0, T, min(eval_windows, len(val_stream) // T), **options)
    share = train_batches.windows_per_step // world  # windows of a step that are this process's
    micro = next(m for m in range(min(micro_batch, share), 0, -1) if share % m == 0)

    # Model and optimizer. The initial weights are drawn on the CPU: the same on every machine.
    torch.manual_seed(seed)
    transformer = Transformer(config).to(where)
    transformer.compute_dtype, transformer.recompute = getattr(torch, dtype), recompute
    params = list(transformer.parameters())
    optimizer = torch.optim.AdamW(params, lr, (beta1, beta2), eps, weight_decay, fused=True)
    loss_module = ddp = PretrainingLoss(transformer)
    if compile:
        loss_module.compile_parts()
    if world > 1:
        ddp = DistributedDataParallel(loss_module, [where] if on_gpu else None, broadcast_buffers=False,
                                      gradient_as_bucket_view=True)  # fmt: skip

    # Begin anew, go on with this run, branch off another one, or start from a model's weights.
    out, step, origin = Path(out_dir), 0, branch_from or init_from
    newest = [checkpoint.newest(out, say) if resume and rank == 0 else None]  # one process verifies it
    if world > 1:
        dist.broadcast_object_list(newest)
    resumed = newest[0] is not None
    if resumed or origin:
        state = checkpoint.load(newest[0] or origin, verified=resumed or rank > 0, report=say)
        checkpoint.match(state, vars(config), tokenizer.state(), rank_bytes, newest[0] or origin)
        transformer.load_state_dict(state["model"])
        if resumed or branch_from:
            optimizer.load_state_dict(state["optimizer"])  # with the other run's settings, which a branch does not take
            optimizer.param_groups[0].update(betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
            step = state["step"]
        else:
            say(checkpoint.share(state, max_steps * global_batch_tokens))
        del state
    if step > max_steps:
        sys.exit(f"branch_from={branch_from} is at step {step}, beyond max_steps={max_steps}")
    if rank == 0:
        out.mkdir(parents=True, exist_ok=True)
        run_facts = dict(settings=settings, model=vars(config), parameters=sum(p.numel() for p in params),
                         processes=world, data_fingerprint=meta["fingerprint"], versions=checkpoint.versions(where),
                         source={f: (ROOT / f).read_text() for f in ("train.py", "model.py", "data/loader.py")})  # fmt: skip
        checkpoint.record(out / "config.json", run_facts, step if resumed else None)
        log = checkpoint.MetricsLog(out / "metrics.jsonl", step if resumed else -1, wandb_project, settings)

    @torch.no_grad()
    def evaluate():
        """The validation loss of both objectives, in nats per predicted token."""
        n, losses = val_batches.windows_per_step, {}
        for name, causal in (("val_clm_loss", True), ("val_mlm_loss", False)):
            total = torch.zeros(2, dtype=torch.float64, device=where)
            for first in range(rank * micro, n, world * micro):
                batch = to_device(val_batches.batch(0, causal, first, min(first + micro, n)), where)
                with torch.compiler.set_stance("force_eager"):  # no second compilation for the last, smaller batch
                    total += torch.stack(loss_module(batch, causal))
            if world > 1:
                dist.all_reduce(total)
            losses[name] = (total[0] / total[1]).item()
        return losses

    def write(causal, line):
        if rank == 0 and line:
            log.write(step=step, phase="clm" if causal else "mlm", tokens=step * global_batch_tokens, **line)
            if "val_clm_loss" in line:
                plot_run(out)

    def save():
        if rank == 0:
            state = {"step": step, "model": transformer.state_dict(), "optimizer": optimizer.state_dict(),
                     "config": vars(config), "settings": dict(settings), "versions": checkpoint.versions(where),
                     "data": meta["fingerprint"], "tokenizer": tokenizer.state(), "tokenizer_ranks": rank_bytes}  # fmt: skip
            log.sync()
            checkpoint.save(checkpoint.path_of(out, step), state)
            checkpoint.prune(out, step, keep_last, keep_steps)

    stop = []  # the signals that asked this process to stop; the same one again stops it at once

    def on_signal(number, frame):
        stop.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)

    peak = peak_flops(where) if dtype != "float32" else None
    if world > 1 and step < max_steps:
        # After its first backward pass DDP rearranges its buckets, and so the order of its sums. A pass that is
        # thrown away lets that happen before any step counts: a resumed run must sum as the undisturbed one.
        ddp(to_device(train_batches.batch(step, is_causal(step), 0, micro), where), is_causal(step))[0].backward()
        optimizer.zero_grad(set_to_none=False)

    jobs = ((s, is_causal(s), first, first + micro)
            for s in range(step, max_steps) for first in range(rank * share, (rank + 1) * share, micro))  # fmt: skip
    batches = prefetch(train_batches.batch, jobs)
    bar = tqdm(total=max_steps, initial=step, unit="step", disable=rank > 0, dynamic_ncols=True,
               mininterval=0.5 if sys.stderr.isatty() else 20)  # fmt: skip
    stopping, seconds, since = 0, 0.0, step  # seconds: spent in the steps since the last line of the log
    if not resumed:
        write(is_causal(step), evaluate())

    while step < max_steps and not stopping:
        started, causal = time.perf_counter(), is_causal(step)

        # Forward and backward. The sum of the losses goes backward; the mean comes in below.
        total = torch.zeros(3, dtype=torch.float64, device=where)  # sum of losses, predicted tokens, signals
        for first in range(0, share, micro):
            batch = to_device(next(batches), where)
            ddp.require_backward_grad_sync = first + micro == share  # DDP's: processes exchange after the last one
            loss_sum, count = ddp(batch, causal)
            loss_sum.backward()
            total[:2] += torch.stack((loss_sum.detach(), count))
        total[2] = len(stop)
        if world > 1:
            dist.all_reduce(total)

        # The gradient so far is that of the summed loss, averaged over processes by DDP. One factor makes it that
        # of the mean over all predicted tokens of the step, and clips it. A GPU is waited for once, for four numbers.
        grads = [p.grad for p in params]
        loss_sum, count, stopping, norm = torch.cat((total, torch.nn.utils.get_total_norm(grads)[None])).tolist()
        loss, to_mean = loss_sum / count, world / count
        grad_norm = norm * to_mean
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            sys.exit(f"step {step} ({'clm' if causal else 'mlm'}): loss {loss}, gradient norm {grad_norm}. Stopped before "
                     f"the update; the checkpoints in {out} are as they were. A lower lr often helps.")  # fmt: skip
        torch._foreach_mul_(grads, to_mean * min(1.0, grad_clip / (grad_norm + 1e-6)))

        # Update.
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        optimizer.step()
        optimizer.zero_grad(set_to_none=world == 1)  # DDP's gradients are views of its buckets and stay
        step += 1
        seconds += time.perf_counter() - started

        # Log, evaluate, save. Everything about a step is in the log before its checkpoint is made.
        line = {}
        if step % log_interval == 0 or step == max_steps:
            speed = (step - since) * global_batch_tokens / seconds  # tokens per second of training, nothing else
            line = dict(loss=loss, grad_norm=grad_norm, lr=learning_rate(step - 1), tokens_per_s=round(speed))
            flops = speed * flops_per_token(config, T, causal, count / global_batch_tokens)
            mfu = dict(mfu=f"{flops / (world * peak):.1%}") if peak else {}
            bar.set_postfix(phase="clm" if causal else "mlm", loss=f"{loss:.3f}", tok_s=f"{speed:,.0f}", **mfu, refresh=False)
            seconds, since = 0.0, step
        if step % eval_interval == 0 or step in (switch_step, max_steps):
            line |= evaluate()
        write(causal, line)
        if rank == 0 and step in (switch_step, max_steps):
            with torch.compiler.set_stance("force_eager"):  # texts of any length: not to be compiled
                say(f"\nat step {step}, the end of {'CLM' if causal else 'MLM'}\n{examples(transformer, tokenizer)}")
        bar.update()
        if step % checkpoint_interval == 0 or step in keep_steps or step == max_steps or stopping:
            save()

    bar.close()
    if rank == 0 and stopping:
        print(f"\nStopped at step {step} of {max_steps}, which is saved. The same command with --resume=True goes on.")
    elif rank == 0:  # what was learned
        print("\n" + summary(out, switch_step))
    if world > 1:
        dist.barrier()
        del ddp  # before its process group: the other order can deadlock in gloo's destructor
        dist.destroy_process_group()
    if stopping:
        sys.exit(128 + (stop[-1] if stop else signal.SIGTERM))


if __name__ == "__main__":
    main()
