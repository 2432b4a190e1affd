"""The machine that a script runs on: device, dtype, determinism, memory, processes, and a model sharded over them."""

import ctypes
import os
import resource
import warnings
from contextlib import contextmanager, suppress
from datetime import timedelta
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from configurator import value_problems
from errors import DataError


def resolve_auto(settings):
    """Replace "auto" in the settings `device` and `dtype` by what this machine has. Returns a copy.

    Warns if the machine has no instructions for bfloat16: on a Zen 3 CPU, a matrix product takes 60 times as long.
    """
    device = settings["device"]
    dtype = settings["dtype"]
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        has_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        has_bf16 = any(torch.cpu.get_capabilities().get(k) for k in ("avx512_bf16", "amx_bf16", "bf16"))
    if dtype == "auto":
        dtype = "bfloat16" if has_bf16 else "float32"
    elif dtype == "bfloat16" and not has_bf16:
        warnings.warn(f"dtype=bfloat16: this {device} has no instructions for it; --dtype=float32 is many times faster")
    return type(settings)({**settings, "device": device, "dtype": dtype})


def device_problems(settings):
    """Yield what is wrong with the settings device and dtype: an unknown name, or a GPU that this machine lacks."""
    yield from value_problems(
        settings, choices={"device": ["auto", "cpu", "cuda"], "dtype": ["auto", "float32", "bfloat16"]}
    )
    gpus = torch.cuda.device_count()
    if resolve_auto(settings).device == "cuda" and local_rank() >= gpus:
        yield f"device=cuda: this is process {local_rank()}, but there are {gpus} GPUs"


def use_determinism():
    """Make this process's results repeatable, bit for bit. An operation that cannot do this raises RuntimeError."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid, which takes 5 % of a step
    torch.ones(64).exp()  # sets up MKL from one thread: with two, one start in ten differed in the last bits


def keep_freed_memory():
    """Let glibc keep the memory that a step frees. Otherwise the system zeroes the same pages again in each step."""
    with suppress(OSError, AttributeError, TypeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
            mallopt(option, 2**30) or mallopt(option, 2**25)  # the limit before glibc 2.35


def world():
    """Return this process's (rank, number of processes), as torchrun sets them; (0, 1) without torchrun."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return int(os.environ.get("RANK", 0)) % world_size, world_size  # rank 0 of 1, even if a shell sets RANK


def local_rank():
    """Return this process's rank on its machine, as torchrun sets it; 0 without torchrun."""
    return int(os.environ.get("LOCAL_RANK", 0)) % world()[1]


def set_up(device, deterministic):
    """Prepare this process to train. device: "cpu" or "cuda". Returns (torch.device, rank, number of processes)."""
    rank, world_size = world()
    on_gpu = device == "cuda"
    device = torch.device("cuda", local_rank()) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        keep_freed_memory()
    if deterministic or not on_gpu:
        use_determinism()
    if world_size > 1:  # the others wait while rank 0 saves, which may take long on a slow disk
        dist.init_process_group(
            "nccl" if on_gpu else "gloo", timeout=timedelta(hours=1), device_id=device if on_gpu else None
        )
    return device, rank, world_size


def decision_of_rank_0(value):
    """Return rank 0's value on all processes, which must all call this."""
    box = [value]
    if dist.is_initialized():
        dist.broadcast_object_list(box)
    return box[0]


def from_all(value):
    """Return a list of the values of all processes, by rank. All of them must call this."""
    if not dist.is_initialized():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def refuse_together(message, kind=DataError):
    """Raise a DataError, or an error of another kind. All processes must call this, so that none waits for another."""
    if dist.is_initialized():
        dist.destroy_process_group()  # otherwise gloo's threads may abort when Python exits
    raise kind(message)


def any_process(values, device):
    """Return for each value, such as a list of received signals, whether it is true on at least one process."""
    true = [bool(value) for value in values]
    if not dist.is_initialized():  # so that a single GPU's update is not waited for here
        return true
    count = torch.tensor(true, dtype=torch.float32, device=device)
    dist.all_reduce(count)
    return (count > 0).tolist()


def peak_memory(device):
    """Return this process's peak memory in bytes: on its GPU or, without one, on the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ----------------------------------------------------------------------------
# Sharding (PyTorch's FSDP2): each process holds a part of every weight, its gradient and its optimizer state


@contextmanager
def weights_on_meta():
    """Within this context, new modules have their weights on the meta device: shapes, but no memory.

    Buffers such as the rotary tables get their values as usual, because checkpoints do not hold them.
    """

    def to_meta(module, name, p):
        return p if p.is_meta else nn.Parameter(p.to("meta"), p.requires_grad)

    hook = nn.modules.module.register_module_parameter_registration_hook(to_meta)
    # To fill an embedding on the meta device, PyTorch would load its compiler, which takes half a second.
    with hook, patch("torch.nn.Embedding.reset_parameters"):
        yield


def shard(loss_module, device):
    """Shard a PretrainingLoss, whose weights are on the meta device, over the processes, in place. Sets no values.

    The processes gather the matrices of a block before its forward pass and again before its backward pass. They do so
    in `compute_dtype`: this is the cast of `Linear`, made before the exchange instead of after it. All other weights
    (embedding, head, norms, biases) are one group and stay in fp32, as without shards. The gradients are averaged in
    fp32 after each micro-batch: adding them up first would take memory for whole gradients.
    """
    transformer = loss_module.model
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    matrices = {p for p in transformer.blocks.parameters() if p.ndim == 2}
    fully_shard(loss_module, mesh=mesh, reshard_after_forward=True, ignored_params=matrices)
    policy = MixedPrecisionPolicy(transformer.compute_dtype, torch.float32, cast_forward_inputs=False)
    for block in transformer.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, ignored_params=set(block.parameters()) - matrices)
    loss_module._apply(lambda x: torch.empty_like(x, device=device) if x.is_meta else x)


def gather(x):
    """Return the whole tensor of a sharded one, and any other x as it is. All processes must call this."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def map_items(function, x):
    """Return nested dicts, lists and tuples with function(item) in place of each item."""
    if isinstance(x, dict):
        return {key: map_items(function, value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(map_items(function, value) for value in x)
    return function(x)


def whole(state):
    """Return a state dict with whole tensors in place of shards. All processes must call this.

    The whole tensors are on the CPU of rank 0. Other ranks get None: a host may have memory for one copy only.
    """

    def whole_tensor(x):
        if not isinstance(x, DTensor):
            return x
        x = gather(x)
        return x.cpu() if dist.get_rank() == 0 else None

    return map_items(whole_tensor, state)


def outline(state):
    """Return a state dict with its tensors on the meta device, so that they have shapes only. Scalars keep values."""
    return map_items(lambda x: x.to("meta") if isinstance(x, torch.Tensor) and x.ndim else x, state)


def from_rank_0(state):
    """Return the state dict of rank 0: the dict itself on rank 0, its `outline` on the others."""
    received = decision_of_rank_0(outline(state))
    return state if dist.get_rank() == 0 else received


def scatter(x, like):
    """Return a whole tensor as a DTensor that is sharded like `like`. Only rank 0's x needs values."""
    x = x if dist.get_rank() == 0 else torch.empty(x.shape)
    return distribute_tensor(x.to(like.device, like.dtype), like.device_mesh, like.placements)


def scatter_weights(transformer, weights):
    """Load rank 0's state dict into a sharded model, in place. Other ranks give one with the same names and shapes."""
    for name, x in transformer.state_dict().items():
        x.copy_(scatter(weights[name], x))


def scatter_optimizer(optimizer, state):
    """Shard the tensors of an optimizer's state dict, in place, if its weights are sharded. See `from_rank_0`."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for number, values in state["state"].items():
        for key, x in values.items():
            if isinstance(weights[number], DTensor) and x.ndim:
                values[key] = scatter(x, weights[number])
