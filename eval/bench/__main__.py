"""Benchmarks. Each prints medians of alternating repeats, measured in one run, and their ratios.

    python eval/bench.py loader     tokens/s that one core prepares, beside a nanoGPT-style sampler
    python eval/bench.py prepare    data/prepare.py beside tiktoken alone, and what 100B tokens need
    python eval/bench.py step       training steps beside other code of the same shape, and where their time goes
    python eval/bench.py finetune   tokens/s of fine-tuning on batches without padding, beside a padded loop
    python eval/bench.py memory     GPU memory of the presets, computed, and the largest micro_batch that fits
    python eval/bench.py kernels    attention alone, beside PyTorch's; --quick=True for the few rows that matter most
    python eval/bench.py kernels --aot    the attention kernels compiled, without a GPU, for every architecture

prepare, step and kernels take settings as --key=value and list them with --help. `sh eval/gpu.sh FOLDER` runs what
there is to measure on a GPU.
"""

import importlib.metadata
import itertools
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import finetune
import model
from data.loader import Batches, TokenStream
from data.tokenizer import Tokenizer
from eval.bench import attention as bench_kernels, prepare as bench_prepare, step as bench_step
from eval.bench.timing import alternating, hardware
from model import PRESETS, ModelConfig, Transformer
from runtime import resolve_auto as resolved

# ----------------------------------------------------------------------------
# Loader


def bench_loader(T=2048, windows=64, tokens=30_000_000, repeats=9):
    """One core, T=2048, from a memory-mapped file of random tokens."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.load("embedded")
    with tempfile.TemporaryDirectory() as folder:
        ids = np.random.default_rng(0).integers(0, len(tokenizer.ranks), tokens).astype(np.uint16)
        ids[::700] = tokenizer.eos_id
        ids.tofile(Path(folder) / "train-00000.bin")
        meta = {"dtype": "uint16", "splits": {"train": {"shards": [{"file": "train-00000.bin"}]}}}
        stream, step = TokenStream(folder, meta, "train"), iter(range(10**9))

        def nanogpt():
            data = np.memmap(Path(folder) / "train-00000.bin", np.uint16, "r")
            ix = torch.randint(len(data) - T, (windows,))
            x = torch.stack([torch.from_numpy(data[i : i + T].astype(np.int64)) for i in ix])
            y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + T].astype(np.int64)) for i in ix])
            return x, y

        functions = {"nanoGPT-style sampler": nanogpt}
        for split in ("none", "random", "document"):
            batches = Batches(stream, tokenizer, 1, T, windows, split)
            functions[f"CLM, window_split={split}"] = lambda b=batches: b.batch(next(step), True)
            functions[f"MLM, window_split={split}"] = lambda b=batches: b.batch(next(step), False)
        seconds = alternating(functions, repeats)
    for name, s in seconds.items():
        print(f"{name:<28}{windows * T / s / 1e6:>8.1f}M tokens/s")


# ----------------------------------------------------------------------------
# Fine-tuning


def bench_finetune(d_model=256, n_layer=4, repeats=7, batches=4, size=32):
    """Forward, backward and update of sequence classification on texts with the lengths of two data sets.

    The padded loop is the same model on rows as long as the batch's longest text, with a mask of keys (B, 1, 1, T)
    and the faster of PyTorch's fused attention and plain products.
    """
    rng, V = np.random.default_rng(0), 4096
    config = ModelConfig(V, n_layer, d_model // 64, d_model // 64, d_model, 3 * d_model, seq_len=512)
    torch.manual_seed(0)
    task = finetune.TaskModel(Transformer(config), "sc", 2, causal=False, pooling="mean", dropout=0.0)
    encoder = task.encoder
    encoder.compute_dtype = getattr(torch, resolved(dict(device="cpu", dtype="auto"))["dtype"])
    optimizer = torch.optim.AdamW([p for name, p in task.named_parameters() if name != "encoder.head.weight"], fused=True)
    own, bias = model.attention, None

    def update(logits):
        F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()

    def packed(texts):
        update(task(**finetune.packed(texts, 64)))

    def masked(q, k, v, causal, doc_start, doc_end, fused):
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        if fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2)
        return ((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2)

    def padded(texts, fused):
        nonlocal bias
        lengths = torch.tensor([len(ids) for ids in texts])
        keep = torch.arange(lengths.max()) < lengths[:, None]  # (B, T)
        tokens = torch.zeros(keep.shape, dtype=torch.long).masked_scatter_(keep, torch.tensor(sum(texts, [])))
        bias = torch.zeros(keep.shape, dtype=encoder.compute_dtype).masked_fill_(~keep, -1e9)[:, None, None]
        model.attention = lambda *args: masked(*args, fused)
        try:
            hidden = encoder(tokens, False).float() * keep[..., None]
            update(task.head(hidden.sum(1) / lengths[:, None]))
        finally:
            model.attention = own

    print(f"{config}\nbatches of {size} texts, {encoder.compute_dtype}")
    kinds = {"like SST-2, 2 to 80 tokens": lambda: np.exp(rng.normal(2.2, 0.75, size)).clip(2, 80),
             "like SQuAD, 60 to 480 tokens": lambda: rng.normal(175, 60, size).clip(60, 480)}  # fmt: skip
    for name, lengths in kinds.items():
        texts = [[rng.integers(1, V, int(n)).tolist() for n in lengths()] for _ in range(batches)]
        ways = {"packed": packed, "padded, fused attention": lambda b: padded(b, True), "padded, plain": lambda b: padded(b, False)}
        seconds = alternating({way: lambda f=f: [f(batch) for batch in texts] for way, f in ways.items()}, repeats)
        n = sum(len(ids) for batch in texts for ids in batch)
        best = min(s for way, s in seconds.items() if way != "packed")
        print(f"{name}, mean {n / batches / size:.0f}: the best padded loop takes {best / seconds['packed']:.2f}x the time")
        for way, s in seconds.items():
            print(f"  {way:<26}{n / s:>9,.0f} tokens of text/s")


# ----------------------------------------------------------------------------
# Memory


def activation_bytes(config, n_layer):
    """Bytes that the backward pass of one window keeps, counted in eager mode on a CPU in bf16.

    Without documents: PyTorch's attention would keep a dense mask for those, the kernels do not.
    """
    config = ModelConfig(**{**config.__dict__, "n_layer": n_layer, "vocab_size": 256})
    model, T = Transformer(config), config.seq_len
    model.compute_dtype = torch.bfloat16
    kept, own = {}, {p.untyped_storage().data_ptr() for p in model.parameters()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = model(torch.zeros(1, T, dtype=torch.long), False)
    del hidden
    return sum(kept.values())


def bench_memory(vocab_size=128_256, sizes=(24, 40, 80, 141)):
    """Weights, gradients and AdamW's moments are 16 bytes a parameter; DDP's buckets are the gradients."""
    print("computed, not measured; T=2048, vocabulary 128,256; GiB, and the largest micro_batch")
    print(f"{'':<20}{'fixed':>7}{'a window':>10}" + "".join(f"{f'{size} GB':>9}" for size in sizes))
    for name in ("210m", "610m", "1b"):
        config = ModelConfig(vocab_size=vocab_size, **PRESETS[name])
        with torch.device("meta"):
            parameters = sum(p.numel() for p in Transformer(config).parameters())
        one, two = (activation_bytes(config, n) for n in (1, 2))
        casts = 2 * parameters  # the weights in bf16, for a backward pass
        head = 2**28 * (4 + 2) + 4 * vocab_size * config.d_model  # a chunk of logits, and the gradient of the head
        fixed = 16 * parameters + casts + head + 2**30  # and a GiB for the context and fragmentation
        block_input = 2 * config.seq_len * config.d_model
        for recompute, window in ((False, one + (config.n_layer - 1) * (two - one)), (True, one + config.n_layer * block_input)):
            fits = [max(0, int((size * 1e9 - fixed) // window)) for size in sizes]
            print(f"{name + (', recompute' if recompute else ''):<20}{fixed / 2**30:>7.1f}{window / 2**30:>10.2f}"
                  + "".join(f"{n or '-':>9}" for n in fits))  # fmt: skip


# ----------------------------------------------------------------------------
# Attention kernels, compiled without a GPU

# Shared memory of one program in bytes, and the matrix instruction to look for.
ARCHITECTURES = {80: (166_912, "mma.sync"), 86: (101_376, "mma.sync"), 89: (101_376, "mma.sync"),
                 90: (232_448, "wgmma.mma_async"), 100: (232_448, "tcgen05.mma"), 120: (101_376, "mma.sync"),
                 "gfx90a": (65_536, "v_mfma"), "gfx942": (65_536, "v_mfma")}  # fmt: skip


def compile_kernel(which, architecture, D, dtype=torch.bfloat16, causal=True, documents=False, H=18, H_kv=6):
    """A row of the launch table compiled, for T a multiple of 16: registers, bytes of stack (a spill is more than 16) and
    of shared memory, how many matrix instructions; for Hopper also what `hopper_loops` reads off the machine code."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = model.KERNELS[which]
    cuda = isinstance(architecture, int)
    constants = model.launch_settings(which, architecture if cuda else architecture[:4], H, H_kv, D, dtype, causal, documents)
    options = {name: constants.pop(name) for name in set(constants) - {*kernel.arg_names}}
    row = [constants["QUERIES"], constants["KEYS"], options["num_warps"], options["num_stages"]]
    constants |= {} if documents else {"doc_start": None, "doc_end": None}
    types = {"lse": "*fp32", "delta": "*fp32", "doc_start": "*i32", "doc_end": "*i32", "T": "i32"}
    tensor = "*" + {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    strides = [name for name in kernel.arg_names if name[1:] in ("_b", "_t", "_h")]
    types |= dict.fromkeys(strides, "i32") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, tensor) for name in kernel.arg_names}
    divisible = [i for i, name in enumerate(kernel.arg_names) if name not in constants]
    attributes = {(i,): [["tt.divisibility", 16]] for i in divisible}  # what a launch finds out by itself
    target = GPUTarget("cuda", architecture, 32) if cuda else GPUTarget("hip", architecture, 64)
    compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target=target, options=options)
    result = dict(zip(("queries", "keys", "warps", "stages"), row), shared=compiled.metadata.shared)
    assembly = compiled.asm["ptx" if cuda else "amdgcn"]
    result["matrix"] = len(re.findall(ARCHITECTURES[architecture][1], assembly))
    if cuda:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(compiled.asm["cubin"])
            tools = Path(triton.__file__).parent / "backends/nvidia/bin"
            commands = [tools / "cuobjdump", "--dump-resource-usage", file.name], [tools / "nvdisasm", "-c", file.name]
            usage, code = (subprocess.run(words, capture_output=True, text=True, check=True).stdout for words in commands)
        result["registers"], result["stack"] = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
        if architecture == 90 and dtype != torch.float32:
            result |= hopper_loops(code, options["num_warps"] / 4 / (row[0] * row[1] / 64**2))
    else:
        result["registers"], result["stack"] = (int(re.search(rf"{word}:\s+(\d+)", assembly)[1])
                                                for word in (".vgpr_count", ".private_segment_fixed_size"))  # fmt: skip
    return result


def hopper_loops(code, scale):
    """Of a kernel's innermost loops, first that without masks, then that of the edges: how many instructions each of the
    four schedulers of a multiprocessor issues for 64 x 64 scores. Beside them its tensor cores are busy for 2 D cycles for each
    of the products (forward 2, dq 3, dkv 4), and exp2 takes 256. Serial is whether the compiler made the products wait
    for one another.

    code: what nvdisasm prints. scale: a loop's instructions times this are those for 64 x 64 scores.
    """
    labels, instructions, loops = {}, [], []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(instructions)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(.*?);", line):
            instructions.append(instruction[1])
            target = re.search(r"BRA.*\((\.L_\w+)\)", instruction[1])
            if target and target[1] in labels:
                loops.append((labels[target[1]], len(instructions)))

    def count(loop, word):
        return sum(word in instruction for instruction in instructions[slice(*loop)])

    loops = [loop for loop in loops if count(loop, "HGMMA")]
    loops = [a for a in loops if not any(a != b and a[0] <= b[0] and b[1] <= a[1] for b in loops)]
    slots = [round((end - begin) * scale) for begin, end in loops]
    return dict(loops=slots, serial=any(count(loop, "WARPGROUP") > count(loop, "HGMMA") for loop in loops))


def bench_kernels_aot():
    """Every row of the launch table in bf16, and the fp32 rows for one architecture; about ten minutes."""
    print(f"Triton {importlib.metadata.version('triton')}; the worst of four: full and causal, without and with documents")
    columns = ("queries", "keys", "warps", "stages", "registers", "stack", "shared", "matrix")
    print(f"{'':<8}{'D':>4}{'kernel':>9}" + "".join(f"{name:>10}" for name in columns) + "    inside, edges: full | documents | causal")
    variants = (False, False), (False, True), (True, False), (True, True)  # causal, documents
    for architecture, dtype in [*((a, torch.bfloat16) for a in ARCHITECTURES), (90, torch.float32)]:
        for D, which in itertools.product((32, 64, 128), model.KERNELS):
            found = [compile_kernel(which, architecture, D, dtype, *variant) for variant in variants]
            worst = {name: (min if name == "matrix" else max)(f[name] for f in found) for name in columns}
            loops = [", ".join(map(str, f["loops"])) + " serial" * f["serial"] for f in found if "loops" in f]
            print(f"{architecture!s:<8}{D:>4}{which:>9}" + "".join(f"{worst[name]:>10}" for name in columns)
                  + "    " + " | ".join(dict.fromkeys(loops)) + "fp32" * (dtype == torch.float32), flush=True)  # fmt: skip


if __name__ == "__main__":
    name, *argv = sys.argv[1:] or [""]
    alone = {"loader": bench_loader, "finetune": bench_finetune, "memory": bench_memory, "kernels --aot": bench_kernels_aot}
    with_settings = {"prepare": bench_prepare.main, "step": bench_step.main, "kernels": bench_kernels.main}
    if run := alone.get(" ".join(sys.argv[1:])):
        print(hardware())
        run()
    elif run := with_settings.get(name):
        run(argv)
    else:
        sys.exit(__doc__.strip())
