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

# Settings of train.py that may differ when a run is resumed, because they do not change what is learned.
RESUME_MAY_CHANGE = set(
    "resume out_dir data micro_batch log_interval eval_interval checkpoint_interval keep_last keep_steps wandb_project "
    "verify_data device compile recompute deterministic".split()
)

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


def missing_gpu(settings):
    """Yield a sentence if the GPU of this process is not there."""
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


def attention_results(attention, x, heads, causal, bounds):
    """Return the output and the gradients of q, k and v. x: (B, T, sum(heads), D), from which they and d_out are cut."""
    q, k, v, d_out = x.split(heads, dim=2)
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = attention(q, k, v, causal, *bounds)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)


def attention_input(device, dtype, B, T, head_dim, documents, n_head, n_kv_head):
    """Return (x, heads, bounds) for `attention_results`. documents: three in a row, then four tokens of padding."""
    heads = (n_head, n_kv_head, n_kv_head, n_head)  # of q, k, v and the gradient of the output
    x = torch.randn(B, T, sum(heads), head_dim, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    if not documents:
        return x, heads, (None, None)
    t = torch.arange(T, dtype=torch.int32, device=device).expand(B, T)
    length = T // 3
    start = t // length * length
    return x, heads, [bound.where(t < T - 4, 0) for bound in (start, (start + length).clamp(max=T - 4))]


def check_attention(device, dtype, head_dim, causal, documents, n_head, n_kv_head, fused=fused_attention):
    """Return the largest relative error of the fused kernels in dtype, against the formula in float64.

    It compares the output and the gradients of q, k and v for a small random batch, with several documents and padding
    if `documents`. Infinite if a result is not a number. Raises what the kernels raise.
    """
    T = 304  # whole blocks and a part of one; a multiple of 16, so that training uses the same compiled kernels
    x, *case = attention_input(device, dtype, 2, T, head_dim, documents, n_head, n_kv_head)
    found = attention_results(fused, x, case[0], causal, case[1])
    exact = attention_results(partial(model.attention, backend="reference"), x.double(), case[0], causal, case[1])
    errors = [(x.double() - e).norm() / e.norm() for x, e in zip(found, exact)]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()


def stress_attention(
    device, dtype, head_dim, causal, documents, n_head, n_kv_head, fused=fused_attention, launches=200, B=8, T=2048
):
    """Return how many of `launches` forward and backward passes are not bitwise equal to the first.

    A race between a kernel's copies and its matrix products can be too rare for `check_attention`.
    """
    x, *case = attention_input(device, dtype, B, T, head_dim, documents, n_head, n_kv_head)
    first = attention_results(fused, x, case[0], causal, case[1])
    different = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(launches - 1):
        now = attention_results(fused, x, case[0], causal, case[1])
        different += torch.stack([(x != y).any() for x, y in zip(now, first)]).any()
    return different.item()


def may_race(device, dtype):
    """Whether the kernels are compiled for Hopper by a Triton before 3.7.1, which leaves out a fence there.

    The fence (fence.proxy.async) orders asynchronous copies to shared memory before the 16-bit products that read them.
    """
    version = tuple(map(int, re.findall(r"\d+", getattr(model.triton, "__version__", ""))[:3]))
    return model.architecture(device) == 90 and dtype.itemsize == 2 and version < (3, 7, 1)


def compare_attention(device, dtype, config, masks, documents, check, stress):
    """Return why the fused kernels must not be used here, "" if they can be.

    They can be if `check` finds no more than rounding and `stress`, unless it is None, no difference.
    """
    if why := model.why_not_triton("cuda", config.head_dim, dtype):
        return why
    allowed = 1e-4 if dtype == torch.float32 else 1e-2
    cases = [(device, dtype, config.head_dim, causal, documents, config.n_head, config.n_kv_head) for causal in masks]
    try:
        largest = max(check(*case) for case in cases)
        unequal = sum(stress(*case) for case in cases) if stress and largest <= allowed else 0
    except Exception as error:  # of the compiler, the driver, or because there is no C compiler
        return f"they raise {type(error).__name__}: {error}"[:300]
    if largest > allowed:
        return f"their relative error is {largest:.1e}, of which {allowed:.0e} could be rounding"
    return f"the same input gave another result {unequal} times" if unequal else ""


def choose_attention(
    device, dtype, config, masks, documents, versions=None, earlier=None, check=check_attention, stress=stress_attention
):
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
            stress = stress if may_race(device, dtype) else None
            decision[0] = compare_attention(device, dtype, config, masks, documents, check, stress)
        if decision[0]:
            warnings.warn(f"attention: PyTorch's, not the fused kernels: {decision[0]}")
        else:
            print("attention: fused kernels")
    if dist.is_initialized():
        dist.broadcast_object_list(decision)
    model.kernels_fail = decision[0]
    return decision[0]


def flops_per_token(config, T, causal, predicted, seen=1.0):
    """Floating-point operations per token of a training step: 6 for each weight of a matrix product.

    predicted: the fraction of tokens on which the output head runs. Attention counts its two products for each pair
    of a query and a key that the mask leaves: all T x T, half of them if causal, and of those the fraction `seen`
    that documents leave: 2/3 with window_split=random. MFU is this number times tokens/s, divided by `peak_flops`.
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


def utilization(tokens_per_s, config, batches, device, dtype, n_devices):
    """The MFU of a run with batches like these, [(batch, causal), ...], as {"mfu": text}; nothing on a CPU.

    "unknown" if the peak is.
    """
    peak = peak_flops(device) if dtype != "float32" else None
    if not peak or not tokens_per_s:
        return {} if device.type == "cpu" else {"mfu": "unknown"}
    flops, total = 0.0, 0
    for batch, causal in batches:
        n_tokens, T = batch["tokens"].numel(), batch["tokens"].shape[1]
        predicted, seen = (batch["targets"] >= 0).sum().item() / n_tokens, 1.0
        if "doc_start" in batch:  # the mean length of a token's document, as a fraction of T
            seen = (batch["doc_end"] - batch["doc_start"]).sum().item() / n_tokens / T
        flops += n_tokens * flops_per_token(config, T, causal, predicted, seen)
        total += n_tokens
    return {"mfu": f"{tokens_per_s * flops / total / (n_devices * peak):.1%}"}


def show(function, *args):
    """Call a function that only prints or draws. If it fails, warn and go on: what it shows must never stop a run."""
    try:
        function(*args)
    except Exception as error:
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
