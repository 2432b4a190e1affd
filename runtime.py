"""The machine that a script runs on: device, dtype, determinism, memory, processes, and a model shared over them."""

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

    Warns about bfloat16 without instructions for it: a product takes 60 times as long on a Zen 3 CPU.
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
    """Yield what is wrong with the settings device and dtype: an unknown name, or this process's GPU is not there."""
    yield from value_problems(
        settings, choices={"device": ["auto", "cpu", "cuda"], "dtype": ["auto", "float32", "bfloat16"]}
    )
    gpus = torch.cuda.device_count()
    if resolve_auto(settings).device == "cuda" and local_rank() >= gpus:
        yield f"device=cuda: this is process {local_rank()}, but there are {gpus} GPUs"


def use_determinism():
    """Make every operation of this process repeatable, bit for bit. An operation that cannot be raises RuntimeError."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # finds bugs of PyTorch, takes 5 % of a step
    torch.ones(64).exp()  # sets up MKL from one thread: from two, one start in ten differed in its last bits


def keep_freed_memory():
    """Let glibc keep what a step frees for the next one. Else the system clears those pages anew in each step."""
    with suppress(OSError, AttributeError, TypeError):  # another C library has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        for option in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, in bytes
            mallopt(option, 2**30) or mallopt(option, 2**25)  # glibc before 2.35 takes no more


def world():
    """This process's (rank, number of processes), as torchrun sets them; (0, 1) without torchrun."""
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    return int(os.environ.get("RANK", 0)) % world_size, world_size  # 0 of 1, where a shell has a RANK of its own


def local_rank():
    """This process's number on its machine, as torchrun sets it; 0 without torchrun."""
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


def refuse_together(message, kind=DataError):
    """Raise a DataError, or an error of another kind, on this process. All others do so at the same time."""
    if dist.is_initialized():
        dist.destroy_process_group()  # or Python's end may abort in gloo's threads
    raise kind(message)


def any_process(values, device):
    """Return for each value, such as a list of received signals, whether it is true on at least one process."""
    true = [bool(value) for value in values]
    if not dist.is_initialized():  # one GPU need not wait for its update here
        return true
    count = torch.tensor(true, dtype=torch.float32, device=device)
    dist.all_reduce(count)
    return (count > 0).tolist()


def peak_memory(device):
    """Return the most memory that this process has had, in bytes: of a GPU, or of the host."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# ----------------------------------------------------------------------------
# Shards: each process holds a part of every weight, of its gradient and of the optimizer's state (PyTorch's FSDP2)


@contextmanager
def weights_on_meta():
    """A module that is built in this context has its weights on the meta device: they have shapes, but no memory.

    All else that it has, such as its rotary tables, has its values. Checkpoints do not hold those.
    """

    def to_meta(module, name, p):
        return p if p.is_meta else nn.Parameter(p.to("meta"), p.requires_grad)

    hook = nn.modules.module.register_module_parameter_registration_hook(to_meta)
    # To fill an embedding on the meta device, PyTorch would load its compiler, which takes half a second.
    with hook, patch("torch.nn.Embedding.reset_parameters"):
        yield


def shard(loss_module, device):
    """Share the weights of a PretrainingLoss on the meta device over the processes, in place. They have no values yet.

    The processes gather the matrices of a block before its forward pass and again before its backward pass. They do so
    in the dtype of the products, which is the cast of `Linear`, made before the exchange instead of after it. All other
    weights (embedding, head, norms, biases) are one group, in fp32, because what model.py does with them is in fp32.
    Each micro-batch's backward pass averages the gradients, in fp32: adding them up first would take memory for all.
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
    """Return a whole tensor in place of shards, on all processes. They call this at the same time."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def map_items(function, x):
    """Return nested dicts, lists and tuples with function(item) in place of each item."""
    if isinstance(x, dict):
        return {key: map_items(function, value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(map_items(function, value) for value in x)
    return function(x)


def whole(state):
    """Return a state dict with whole tensors in place of shards. All processes call this at the same time.

    They are on the CPU of rank 0. The other processes have None, because a checkpoint may fit a host once only.
    """

    def whole_tensor(x):
        if not isinstance(x, DTensor):
            return x
        x = gather(x)
        return x.cpu() if dist.get_rank() == 0 else None

    return map_items(whole_tensor, state)


def outline(state):
    """Return a state dict whose tensors have a shape only, except single numbers."""
    return map_items(lambda x: x.to("meta") if isinstance(x, torch.Tensor) and x.ndim else x, state)


def from_rank_0(state):
    """Return the state dict of rank 0: the dict itself on rank 0, its `outline` on the others."""
    received = decision_of_rank_0(outline(state))
    return state if dist.get_rank() == 0 else received


def scatter(x, like):
    """Return the shards of a whole tensor as a DTensor on the devices of `like`. Only the x of rank 0 has values."""
    x = x if dist.get_rank() == 0 else torch.empty(x.shape)
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
