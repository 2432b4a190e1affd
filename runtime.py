"""The machine that a script runs on: device, dtype, processes, determinism, and its peak arithmetic speed."""

import os
import re
import signal
import warnings
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import model
from configurator import outside_limits

# Dense bf16 FLOP/s with fp32 accumulation, without sparsity, by a part of the device's name. From the vendors' data
# sheets and, for the RTX cards, NVIDIA's white papers on Ampere GA102, Ada and Blackwell.
PEAK_FLOPS = {
    "B200": 2250e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "RTX 3090": 71e12, "RTX 4090": 165e12, "RTX 5090": 210e12, "MI300X": 1307e12,
}  # fmt: skip


def resolve_auto(settings):
    """Replace "auto" in the settings `device` and `dtype` by what this machine has. Returns a copy."""
    device, dtype = settings["device"], settings["dtype"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        if device == "cuda":
            has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            has_bf16 = any(torch.cpu.get_capabilities().get(k) for k in ("avx512_bf16", "amx_bf16", "bf16"))
        dtype = "bfloat16" if has_bf16 else "float32"
    return type(settings)({**settings, "device": device, "dtype": dtype})


def device_problems(settings):
    """Yield what is wrong with the settings device and dtype: an unknown name, or the GPU of this process is not there."""
    choices = dict(device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16"])
    yield from outside_limits(settings, choices=choices)
    local_rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), torch.cuda.device_count()
    if resolve_auto(settings)["device"] == "cuda" and local_rank >= gpus:
        yield f"device=cuda: this is process {local_rank}, but there are {gpus} GPUs"


def use_determinism():
    """Make every operation of this process repeatable, bit for bit. An operation that cannot be raises RuntimeError."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a check on PyTorch itself, 5 % of a step
    torch.ones(64).exp()  # sets up MKL from one thread: from two, one start in ten differed in its last bits


def world():
    """This process's (rank, number of processes), as torchrun sets them; (0, 1) without torchrun."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def set_up(device, deterministic):
    """Prepare this process to train. device: "cpu" or "cuda". Returns (torch.device, rank, number of processes)."""
    rank, world_size = world()
    on_gpu = device == "cuda"
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    if deterministic or not on_gpu:
        use_determinism()
    if world_size > 1:
        dist.init_process_group("nccl" if on_gpu else "gloo")
    return device, rank, world_size


def wrap_ddp(loss_module, batch, causal, device):
    """Wrap the loss in DistributedDataParallel and run one backward pass that is thrown away.

    After its first backward pass DDP rearranges its buckets, and so the order of its sums. This pass makes it happen
    before any step counts: a resumed run must sum as the undisturbed one does.
    """
    batch = {name: x.to(device) for name, x in batch.items()}
    device_ids = [device] if device.type == "cuda" else None
    ddp = DistributedDataParallel(loss_module, device_ids, broadcast_buffers=False, gradient_as_bucket_view=True)
    ddp(batch, causal)[0].backward()
    ddp.zero_grad(set_to_none=False)
    return ddp


fused_attention = partial(model.attention, backend="triton")


def attention_case(device, dtype, B, T, head_dim, causal, documents, n_head, n_kv_head):
    """Return a function of an attention, and of a dtype: its output and the gradients of q, k and v, on random input.

    documents: three in a row, then four tokens of padding.
    """
    heads = (n_head, n_kv_head, n_kv_head, n_head)  # of q, k, v and the gradient of the output
    x = torch.randn(B, T, sum(heads), head_dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    bounds = (None, None)
    if documents:
        t, length = torch.arange(T, dtype=torch.int32, device=device).expand(B, T), T // 3
        start = t // length * length
        bounds = [bound.where(t < T - 4, 0) for bound in (start, (start + length).clamp(max=T - 4))]

    def results(attention, dtype=dtype):
        q, k, v, d_out = x.to(dtype).split(heads, dim=2)
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        out = attention(q, k, v, causal, *bounds)
        return out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)

    return results


def check_attention(device, dtype, *case, fused=fused_attention):
    """Return the largest relative error of the fused kernels in dtype, against the formula in float64.

    case: head_dim and so on, see `attention_case`. It compares the output and the gradients of q, k and v for a small
    random batch. Infinite if a result is not a number. Raises what the kernels raise.
    """
    T = 304  # whole blocks and a part of one; a multiple of 16, so that training uses the same compiled kernels
    results = attention_case(device, dtype, 2, T, *case)
    found, exact = results(fused), results(partial(model.attention, backend="reference"), torch.float64)
    errors = [(x.double() - e).norm() / e.norm() for x, e in zip(found, exact)]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()


def stress_attention(device, dtype, *case, fused=fused_attention, launches=200, B=8, T=2048):
    """Return how many of `launches` forward and backward passes are not bitwise equal to the first.

    A race between a kernel's copies and its matrix products can be too rare for `check_attention`: a Triton before
    3.7.1 leaves out a fence (fence.proxy.async) between them on Hopper.
    """
    results, different = attention_case(device, dtype, B, T, *case), torch.zeros((), dtype=torch.int64, device=device)
    first = results(fused)
    for _ in range(launches - 1):
        different += torch.stack([(x != y).any() for x, y in zip(results(fused), first)]).any()
    return different.item()


def compare_attention(device, dtype, config, masks, documents):
    """Return why the fused kernels must not be used here, "" if they can be, and their relative error or None.

    They can be if the error is no more than rounding, and if the same input always gives the same result.
    """
    if why := model.why_not_triton("cuda", config.head_dim, dtype):
        return why, None
    cases = [(device, dtype, config.head_dim, causal, documents, config.n_head, config.n_kv_head) for causal in masks]
    allowed, error = 1e-4 if dtype == torch.float32 else 1e-2, None
    try:
        error = max(check_attention(*case) for case in cases)
        if error > allowed:
            return f"their relative error is {error:.1e}, of which {allowed:.0e} could be rounding", error
        unequal = sum(stress_attention(*case) for case in cases)
    except Exception as fault:  # of the compiler, the driver, or because there is no C compiler
        return f"they raise {type(fault).__name__}: {fault}"[:300], error
    return f"the same input gave another result {unequal} times" * bool(unequal), error


def choose_attention(device, dtype, config, masks, documents, versions=None, earlier=None):
    """Decide which attention "auto" is on a GPU and tell model.py. Return why not the fused kernels, "" if they are.

    masks: the values of `causal` to check. documents: whether rows hold several. Rank 0 decides for all processes.
    versions, earlier: the records of this start of a run and of the one that it resumes, whose `kernels_fail` is what
    this function returned then. If nothing else has changed, it stays, so that the run goes on as it was.
    """
    earlier = dict(earlier or {})
    recorded = earlier.pop("kernels_fail", None)
    decision = [recorded if earlier == versions else None]
    if world()[0] == 0:
        if decision[0] is None:
            decision[0], _ = compare_attention(device, dtype, config, masks, documents)
        if decision[0]:
            warnings.warn(f"attention: PyTorch's, not the fused kernels: {decision[0]}")
    if dist.is_initialized():
        dist.broadcast_object_list(decision)
    model.kernels_fail = decision[0]
    return decision[0]


def flops_per_token(config, T, causal, predicted, seen=1.0):
    """Floating-point operations per token of a training step: 6 for each weight of a matrix product.

    predicted: the fraction of tokens on which the output head runs. Attention counts its two products for each pair
    of a query and a key that the mask leaves: all T x T, half of them if causal, and of those the fraction `seen`
    that documents leave. MFU is this number times tokens/s, divided by `peak_flops`.
    """
    d, D = config.d_model, config.head_dim
    block = 2 * (config.n_head + config.n_kv_head) * D * d + 3 * d * config.d_ff
    attention = 2 * T * config.n_head * D * seen * (0.5 if causal else 1)
    return 6 * (config.n_layer * (block + attention) + predicted * config.vocab_size * d)


def peak_flops(device):
    """The bf16 peak of a torch.device in FLOP/s, or None where it is not known."""
    name = torch.cuda.get_device_name(device).replace("-", " ") if device.type == "cuda" else ""
    other = "(?! (NVL|Ti|D|Laptop)\\b)"  # other chips, whose names begin like those in the table
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b{other}", name)), None)


def step_flops(config, parts, window_split):
    """Floating-point operations of a process in a training step. parts: see `data.objective.micro_batches`.

    A window that is cut once at random has 2/3 of the pairs of a query and a key. Cuts at each eos are not counted.
    """
    T, seen = config.seq_len, 2 / 3 if window_split == "random" else 1.0
    return sum(
        len(windows) * T * flops_per_token(config, T, kind.causal, kind.mask_ratio or 1, seen)
        for kind, windows in parts
    )


def utilization(cfg, config, parts, seconds, device):
    """The MFU of steps like this one, which take so many seconds, as {"mfu": text}; nothing on a CPU."""
    peak = peak_flops(device) if cfg.dtype == "bfloat16" else None
    if not peak or not seconds:
        return {} if device.type == "cpu" else {"mfu": "unknown"}
    return {"mfu": f"{step_flops(config, parts, cfg.window_split) / seconds / peak:.1%}"}


def show(function, *args):
    """Call a function that only prints or draws. If it fails, warn and go on: what it shows must never stop a run."""
    try:
        function(*args)
    except (Exception, SystemExit) as error:  # wandb exits where nobody is logged in
        warnings.warn(f"{getattr(function, '__name__', 'output')} failed and is left out: {error!r}")


def stop_signals():
    """Return a list that collects, from now on, the signals that ask this process to stop.

    They are SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm can send it) and SIGHUP, unless it is ignored (nohup).
    The same signal a second time stops the process at once.
    """
    received = []

    def on_signal(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    return received
