"""Every row of the launch table, compiled without a GPU: registers, spills, serialized matrix products.

    python -m tests.ahead_of_time

This takes about ten minutes. A line is the worst of the masks that have the same row of the table: full, causal, and
bounds for each token. A few bytes of spills are one or two registers, which does not matter. More would.
"""

import contextlib
import importlib.metadata
import io
import itertools
import re

import torch

import model

# For each architecture the shared memory of one program in bytes, and its matrix instruction.
TARGETS = {
    "80": (166_912, "mma.sync"), "86": (101_376, "mma.sync"), "89": (101_376, "mma.sync"),
    "90": (232_448, "wgmma.mma_async"), "100": (232_448, "tcgen05.mma"), "120": (101_376, "mma.sync"),
    "gfx90a": (65_536, "v_mfma"), "gfx942": (65_536, "v_mfma"),
}  # fmt: skip
# causal, documents; bounds have the causal mask built in
MASKS = {"full": (False, False), "causal": (True, False), "bounds": (False, True)}
COLUMNS = "BLOCK_M BLOCK_N warps stages registers spills shared matrix".split()


def compile_kernel(which, architecture, D, dtype=torch.bfloat16, causal=True, documents=False, H=18, H_kv=6):
    """Compile one row of the launch table for T a multiple of 16, and return a dict of what the compiler says.

    COLUMNS: registers per thread, bytes that spill to memory (spills from one kind of register to another, as on AMD,
    do not count), bytes of shared memory, the number of matrix instructions. serial: whether the compiler makes
    Hopper's matrix products wait for one another.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, cuda = model.KERNELS[which], not architecture.startswith("gfx")
    row = int(architecture) if cuda else architecture[:4]
    constants = model.launch_settings(which, row, H, H_kv, D, dtype, causal, documents)
    options = {name: constants.pop(name) for name in set(constants) - {*kernel.arg_names}}
    constants |= {} if documents else {"doc_start": None, "doc_end": None}
    types = {"lse": "*fp32", "delta": "*fp32", "doc_start": "*i32", "doc_end": "*i32", "T": "i32"}
    types |= dict.fromkeys(constants, "constexpr")
    tensor = "*" + {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    signature = {name: types.get(name, tensor) for name in kernel.arg_names}
    divisible = [i for i, name in enumerate(kernel.arg_names) if name not in constants]
    attributes = {(i,): [["tt.divisibility", 16]] for i in divisible}  # a launch finds this out by itself
    target = GPUTarget("cuda", row, 32) if cuda else GPUTarget("hip", architecture, 64)
    nvidia, compilation = triton.knobs.nvidia, triton.knobs.compilation
    with contextlib.redirect_stdout(io.StringIO()) as log, nvidia.scope(), compilation.scope():
        nvidia.dump_ptxas_log = compilation.always_compile = True
        compiled = triton.compile(ASTSource(kernel, signature, constants, attributes), target=target, options=options)
    assembly = compiled.asm["ptx" if cuda else "amdgcn"]
    text, registers, spills = assembly, r"\.vgpr_count:\s+(\d+)", r"\.private_segment_fixed_size:\s+(\d+)"
    if cuda:
        text, registers, spills = log.getvalue(), r"Used (\d+) registers", r"(\d+) bytes spill stores"
    found = [constants["BLOCK_M"], constants["BLOCK_N"], options["num_warps"], options["num_stages"]]
    found += [int(re.search(pattern, text)[1]) for pattern in (registers, spills)]
    found += [compiled.metadata.shared, assembly.count(TARGETS[architecture][1])]
    return dict(zip(COLUMNS, found, strict=True)) | {"serial": "instructions are serialized" in text}


def main():
    print(f"Triton {importlib.metadata.version('triton')}")
    print(f"{'':<8}{'D':>4}{'kernel':>9}" + "".join(f"{name:>10}" for name in COLUMNS))
    # In fp32 one architecture stands for all.
    for architecture, dtype in [*((name, torch.bfloat16) for name in TARGETS), ("90", torch.float32)]:
        for D, which in itertools.product((32, 64, 96, 128), model.KERNELS):
            same = {}  # row of the table -> {mask: what the compiler says}
            for mask, flags in MASKS.items():
                found = compile_kernel(which, architecture, D, dtype, *flags)
                same.setdefault(tuple(found[name] for name in COLUMNS[:4]), {})[mask] = found
            for masks in same.values():
                worst = {name: (min if name == "matrix" else max)(f[name] for f in masks.values()) for name in COLUMNS}
                notes = "  serial" * any(f["serial"] for f in masks.values()) + "  fp32" * (dtype == torch.float32)
                notes += f"  {', '.join(masks)}" * (len(same) > 1)
                cells = "".join(f"{worst[name]:>10}" for name in COLUMNS)
                print(f"{architecture:<8}{D:>4}{which:>9}{cells}{notes}", flush=True)


if __name__ == "__main__":
    main()
