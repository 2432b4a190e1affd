"""The machine that a script runs on: device, dtype, processes, determinism, and its peak arithmetic speed."""

import os
import re
import resource
import signal
import sys
import warnings
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import lru_cache, partial

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import model
from configurator import value_problems
from errors import DataError

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
    """Yield what is wrong with the settings device and dtype: an unknown name, or this process's GPU is not there."""
    choices = dict(device=["auto", "cpu", "cuda"], dtype=["auto", "float32", "bfloat16"])
    yield from value_problems(settings, choices=choices)
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
    if world_size > 1:  # the others wait while rank 0 saves, which may take long on a slow disk
        backend = "nccl" if on_gpu else "gloo"
        dist.init_process_group(backend, timeout=timedelta(hours=1), device_id=device if on_gpu else None)
    return device, rank, world_size


def decision_of_rank_0(value):
    """Return the value that rank 0 gives, on all processes. They call this at the same time."""
    box = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(box)
    return box[0]


def from_all(value):
    """Return the values of all processes, by rank. They call this at the same time."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def leave(world_size):
    """Wait for the other processes, and end the exchange with them."""
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def wrap_ddp(loss_module, batch, causal, device):
    """Wrap the loss in DistributedDataParallel and run one backward pass that is thrown away.

    After its first backward pass DDP rearranges its buckets, and so the order of its sums. This pass makes it happen
    before any step counts: a resumed run must sum as the undisturbed one does.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*broadcast_buffers")  # torch 2.13 has another name for it
        ddp = DistributedDataParallel(loss_module, broadcast_buffers=False, gradient_as_bucket_view=True)
    ddp(to_device(batch, device), causal)[0].backward()
    ddp.zero_grad(set_to_none=False)
    return ddp


# ----------------------------------------------------------------------------
# Shards: each process holds a part of every weight, of its gradient and of the optimizer's state (PyTorch's FSDP2)


def shard(loss_module, device):
    """Share the weights of a PretrainingLoss on the meta device over the processes, in place. They have no values yet.

    The processes gather the matrices of a block before its forward pass and again before its backward pass. They do so
    in the dtype of the products, which is the cast of `Linear`, made before the exchange instead of after it. All other
    weights (embedding, head, norms, biases) are one group, in fp32, because what model.py does with them is in fp32.
    Gradients are averaged over the processes, in fp32, in the backward pass of every micro-batch: to add them up first,
    each process would need memory for all of them.
    """
    transformer = loss_module.model
    for name, x in transformer.named_buffers():
        if x.is_meta:
            raise DataError(f"{name} in model.py: with --shard=True, create it on the CPU, as `rope_tables` does")
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    matrices = {p for p in transformer.blocks.parameters() if p.ndim == 2}
    fully_shard(loss_module, mesh=mesh, reshard_after_forward=True, ignored_params=matrices)
    policy = MixedPrecisionPolicy(transformer.compute_dtype, torch.float32, cast_forward_inputs=False)
    for block in transformer.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=set(block.parameters()) - matrices)
    loss_module._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x)


def gather(x):
    """Return a whole tensor in place of shards, on all processes. They call this at the same time."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def whole(x):
    """Return a state dict with whole tensors in place of shards. All processes call this at the same time.

    They are on the CPU of rank 0. The other processes have None, because a checkpoint may fit a host once only.
    """
    if isinstance(x, dict):
        return {key: whole(value) for key, value in x.items()}
    if not isinstance(x, DTensor):
        return x
    x = gather(x)
    return x.cpu() if dist.get_rank() == 0 else None


def outline(x):
    """Return a state dict whose tensors have a shape only, except single numbers."""
    if isinstance(x, dict):
        return {key: outline(value) for key, value in x.items()}
    return x.to("meta") if isinstance(x, torch.Tensor) and x.ndim else x


def from_rank_0(state):
    """Return the state dict of rank 0: the dict itself on rank 0, its `outline` on the others."""
    received = decision_of_rank_0(outline(state))
    return state if dist.get_rank() == 0 else received


def scatter(x, like):
    """Return the shards of a whole tensor that only rank 0 has, as a DTensor. like: a DTensor of that shape."""
    if dist.get_rank() > 0:
        x = torch.empty(like.shape)
    return distribute_tensor(x.to(like.device, like.dtype), like.device_mesh, like.placements)


def scatter_weights(transformer, weights):
    """Load a state dict of rank 0 into a model with shards, in place. The others give one of the same names."""
    for name, x in transformer.state_dict().items():
        x.copy_(scatter(weights[name], x))


def scatter_optimizer(optimizer, state):
    """Replace whole tensors in an optimizer's state dict by shards, if its weights are shards. See `from_rank_0`."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in state["state"].items():
        for key, x in values.items():
            if isinstance(weights[number], DTensor) and x.ndim:
                values[key] = scatter(x, weights[number])


# ----------------------------------------------------------------------------
# Is the fused attention right on this GPU? Is model.py edited?

MASKS = [(causal, documents) for causal in (True, False) for documents in (True, False)]
fused_attention = partial(model.attention, backend="triton")
exact_attention = partial(model.attention, backend="reference")
pytorch_attention = partial(model.attention, backend="sdpa")


def three_documents(B, T, device):
    """Return doc_start and doc_end, int32 (B, T), of rows with three documents and four tokens of padding.

    A token sees the whole rest of its document, and to the left half of its length. So no two bounds are alike.
    """
    t = torch.arange(T, dtype=torch.int32, device=device).expand(B, T)
    length = T // 3
    start = t // length * length
    end = (start + length).clamp(max=T - 4)
    start = start.maximum(t - length // 2)
    return start.masked_fill(t >= T - 4, T - 4), end


def attention_inputs(config, dtype, device, causal, documents, B, T):
    """Return random (q, k, v, d_out, causal, doc_start, doc_end), where d_out is the gradient of the output."""
    heads = (config.n_head, config.n_kv_head, config.n_kv_head, config.n_head)
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(B, T, sum(heads), config.head_dim, generator=generator).to(device, dtype)
    bounds = three_documents(B, T, device) if documents else (None, None)
    return *packed.split(heads, dim=2), causal, *bounds


def attention_results(attention, q, k, v, d_out, causal, doc_start, doc_end):
    """Return the output of an attention and the gradients of q, k and v."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, causal, doc_start, doc_end)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)]


def relative_error(found, exact):
    """Return the largest relative error of results of `attention_results`; infinite if one is not a number."""
    errors = [(x.double() - e).norm() / e.double().norm() for x, e in zip(found, exact)]
    return torch.stack(errors).nan_to_num(nan=torch.inf).max().item()


def check_attention(config, dtype, device, causal, documents, fused=fused_attention, T=304):
    """Return the largest relative error of the output and gradients of the fused attention for a small random batch.

    The formula in float64 is the measure. T: tokens of a row; 304 are whole blocks of the kernels and a part of one,
    and a multiple of 16, so that training uses the same compiled kernels. Raises what the kernels raise.
    """
    inputs = attention_inputs(config, dtype, device, causal, documents, 2, T)
    in_float64 = [x.double() for x in inputs[:4]]
    exact = attention_results(exact_attention, *in_float64, *inputs[4:])
    return relative_error(attention_results(fused, *inputs), exact)


@lru_cache  # a study asks for each of its runs
def loss_is_edited():
    """Whether `plain_loss` of `Transformer.logits` is something else than the fused loss."""
    transformer = model.Transformer(model.ModelConfig()).eval()
    torch.nn.init.normal_(transformer.head.weight)  # larger logits, which a soft cap changes
    t = torch.arange(5)
    batch = {"tokens": t[None], "positions": t, "targets": torch.tensor([1, -1, 3, 0, 7])}
    fused, plain = (model.PretrainingLoss(transformer, plain)(batch, causal=True)[0] for plain in (False, True))
    return not torch.allclose(fused, plain, rtol=1e-5)


@lru_cache
def attention_is_edited(seq_len):
    """Whether the formula of the attention computes something else than PyTorch's, as after an edit of its mask.

    seq_len: the tokens of a row, of which at most 2,048 are compared.
    """
    config, device = model.ModelConfig(), torch.device("cpu")
    masks = (True, False), (False, False)  # with documents, PyTorch's calls `attention_mask`, too
    T = max(304, min(seq_len, 2048))
    errors = [check_attention(config, torch.float32, device, *mask, pytorch_attention, T) for mask in masks]
    return max(errors) > 1e-3


def stress_attention(config, dtype, device, causal, documents, fused=fused_attention, passes=50, B=8, T=2048):
    """Return how many of so many forward and backward passes are not bitwise equal to the first.

    Raises ValueError if the first differs from PyTorch's attention by more than the rounding of both, since
    `check_attention` sees short rows only. A race between a kernel's copies and its matrix products can be too rare for
    `check_attention`: a Triton before 3.7.1 leaves out a fence (fence.proxy.async) between them on Hopper.
    """
    inputs = attention_inputs(config, dtype, device, causal, documents, B, T)
    first = attention_results(fused, *inputs)
    error = relative_error(first, attention_results(pytorch_attention, *inputs))
    if error > 0.02:
        raise ValueError(f"for rows of {T} tokens it differs from PyTorch's attention by {error:.1%}")
    different = torch.zeros((), dtype=torch.int64, device=device)
    for _ in range(passes - 1):
        unequal = [(x != y).any() for x, y in zip(attention_results(fused, *inputs), first)]
        different += torch.stack(unequal).any()
    return different.item()


def fused_attention_fails(config, dtype, device):
    """Return why the fused attention must not be used for such a model here, "" if it can be.

    It can be if its error is no more than rounding and the same input always gives the same result, for each mask.
    """
    if why := model.why_not_triton("cuda", config.head_dim, dtype):
        return why
    allowed = 1e-4 if dtype == torch.float32 else 1e-2
    try:
        error = max(check_attention(config, dtype, device, *mask) for mask in MASKS)
        if error > allowed:
            return f"its relative error is {error:.1e}, of which {allowed:.0e} could be rounding"
        if dtype == torch.float32:  # one stage, see LAUNCH in model.py: no copy runs beside a product
            return ""
        unequal = sum(stress_attention(config, dtype, device, *mask) for mask in MASKS)
        if unequal:
            return f"the same input gave another result {unequal} times"
    except Exception as fault:  # of the compiler, the driver, or because there is no C compiler
        return f"it raises {type(fault).__name__}: {fault}"[:300]
    return ""


def set_attention(transformer, device, versions, earlier):
    """Choose "triton" or "sdpa" for a model on a GPU, and note it in `versions`. If it is "sdpa", warn why.

    earlier: a checkpoint's dict, or None. Its backend stays if no version has changed, even where a check might now
    differ. Rank 0 chooses for all processes.
    """
    before = dict(earlier["versions"]) if earlier else {}
    backend = before.pop("attention", "")
    if before != versions:
        backend = ""
    if world()[0] == 0 and not backend:
        why = fused_attention_fails(transformer.config, transformer.compute_dtype, device)
        if why:
            warnings.warn(f"attention: PyTorch's, not the fused kernels: {why}")
        backend = "sdpa" if why else "triton"
    transformer.attention_backend = versions["attention"] = decision_of_rank_0(backend)


# ----------------------------------------------------------------------------
# Arithmetic


@lru_cache(1)  # all steps of a run ask for the same model
def matrix_weights(transformer):
    """Return how many weights of a Transformer take part in matrix products, without the output head, and in the head.

    They are the matrices of all modules except embeddings, whatever model.py makes of them.
    """
    total = 0
    for module in transformer.modules():
        if not isinstance(module, torch.nn.Embedding):
            total += sum(p.numel() for p in module.parameters(recurse=False) if p.ndim == 2)
    head = transformer.head.weight.numel()
    return total - head, head


def flops_per_token(transformer, T, causal, predicted, seen=1.0):
    """Floating-point operations per token of a training step: 6 for each weight of a matrix product.

    predicted: the fraction of tokens on which the output head runs. Attention counts its two products for each pair
    of a query and a key that the mask leaves: all T x T, half of them if causal, and of those the fraction `seen`
    that documents leave. MFU is this number times tokens/s, divided by `peak_flops`.
    """
    config, (body, head) = transformer.config, matrix_weights(transformer)
    attention = 2 * T * config.n_head * config.head_dim * seen * (0.5 if causal else 1)
    return 6 * (body + len(transformer.blocks) * attention + predicted * head)


def peak_flops(device, dtype):
    """The peak of a torch.device in FLOP/s for activations of this dtype, or None where it is not known."""
    if device.type != "cuda" or dtype != "bfloat16":
        return None
    name = torch.cuda.get_device_name(device).replace("-", " ")
    other = "(?! (NVL|Ti|D|Laptop)\\b)"  # other chips, whose names begin like those in the table
    return next((peak for part, peak in PEAK_FLOPS.items() if re.search(rf"\b{part}\b{other}", name)), None)


def peak_memory(device):
    """Return the most memory that this process has had, in bytes: of a GPU, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, in bytes
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def step_flops(transformer, groups, window_split):
    """Floating-point operations of a training step, over all processes. groups: see `data.objective.by_objective`.

    A window that is cut once at random has 2/3 of the pairs of a query and a key. Cuts at each eos are not counted.
    """
    T = transformer.config.seq_len
    seen = 2 / 3 if window_split == "random" else 1.0
    flops = 0
    for objective, windows in groups.items():
        per_token = flops_per_token(transformer, T, objective.causal, objective.n_predicted(T) / T, seen)
        flops += len(windows) * T * per_token
    return flops


def utilization(dtype, flops, seconds, device):
    """The MFU of a step of so many FLOPs and seconds on one device, as {"mfu": text}; {} where it is not known."""
    peak = peak_flops(device, dtype)
    return {"mfu": f"{flops / seconds / peak:.1%}"} if peak and seconds else {}


def show(function, *args):
    """Call a function whose failure must not stop a run: one that prints or draws, above all. If it fails, warn."""
    try:
        function(*args)
    except (Exception, SystemExit) as error:
        warnings.warn(f"{getattr(function, '__name__', 'output')} failed and is left out: {error!r}")


def stop_signals():
    """Return a list that collects, from now on, the signals that ask this process to stop.

    They are SIGTERM, SIGINT (Ctrl-C), SIGUSR1 (Slurm can send it) and SIGHUP. Ignored ones stay so, as under nohup.
    The same signal a second time stops the process at once.
    """
    received = []

    def on_signal(number, frame):
        received.append(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, on_signal)
    return received


def any_process(values, device):
    """Return for each value, such as a list of received signals, whether it is true on at least one process."""
    true = torch.tensor([float(bool(value)) for value in values], device=device)
    if dist.is_initialized():
        dist.all_reduce(true)
    return (true > 0).tolist()


def prefetch(function, jobs, depth=2):
    """Yield function(*job) for each job. A background thread works `depth` jobs ahead."""
    with ThreadPoolExecutor(1) as thread:
        ahead = deque()
        for job in jobs:
            ahead.append(thread.submit(function, *job))
            if len(ahead) > depth:
                yield ahead.popleft().result()
        for future in ahead:
            yield future.result()


def to_device(x, device):
    """Return a tensor, or a batch with all of its tensors, on a device. The copy to a GPU does not hold up the host."""
    if device.type == "cpu":
        return x
    if isinstance(x, dict):
        return {name: to_device(tensor, device) for name, tensor in x.items()}
    return x.pin_memory().to(device, non_blocking=True)
