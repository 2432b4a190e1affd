"""What a run knows about its machine: which attention to trust, FLOPs, and MFU."""

import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from model_helpers import Operators
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

import checkpoint
import model_checks
import runtime
from data.flops import flops_per_token, step_flops, utilization
from data.objective import CLM, MLM
from eval.tasks import result
from model import ModelConfig, PretrainingLoss, Transformer, attention
from model_checks import check_attention, set_attention, stress_attention

CPU = torch.device("cpu")
plain = partial(attention, backend="reference")  # runs on a CPU, where the fused kernels do not


STAND_INS = {
    "right": plain,
    "no scale": lambda q, *args: plain(q * q.shape[-1] ** 0.5, *args),  # no 1 / sqrt(D): the mistake that hides best
    "no gradient of v": lambda q, k, v, *args: plain(q, k, v.detach(), *args) + 0 * v.sum(),
    "NaN": lambda *args: plain(*args) * torch.nan,
    "0.001 off": lambda q, *args: plain(q * 1.001, *args),
    "fails": Mock(side_effect=RuntimeError("gcc not found")),
}
BF16 = torch.bfloat16


@pytest.fixture
def kernels(monkeypatch):
    """kernels(name, unequal): stand-ins for the kernels, of which so many passes differ."""

    def stand_in(name, unequal=0):
        monkeypatch.setattr(model_checks, "check_attention", partial(check_attention, fused=STAND_INS[name]))
        monkeypatch.setattr(model_checks, "stress_attention", lambda *case: unequal)

    return stand_in


def test_a_dtype_without_instructions_is_warned_about(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert runtime.resolve_auto({"device": "cpu", "dtype": "auto"})["dtype"] == "float32"
    with pytest.warns(UserWarning, match="cpu has no instructions"):
        assert runtime.resolve_auto({"device": "cpu", "dtype": "bfloat16"})["dtype"] == "bfloat16"


@pytest.mark.parametrize("documents", [True, False])
def test_the_stress_test_counts_what_differs_from_the_first_time(documents):
    calls = []

    def differs_once(q, *args):
        calls.append(q)
        return plain(q * (1 + 1e-6 * (len(calls) == 4)), *args)

    stress = partial(stress_attention, ModelConfig(), torch.float32, CPU, False, documents, passes=5, B=1, T=48)
    assert stress(fused=plain) == 0 and stress(fused=differs_once) == 1 and len(calls) == 5
    for wrong in (STAND_INS["no gradient of v"], STAND_INS["NaN"]):  # always the same
        with pytest.raises(ValueError, match="for rows of 48 tokens it differs from PyTorch's attention"):
            stress(fused=wrong)


@pytest.mark.parametrize("fused, unequal, head_dim, dtype, why", [
    ("right", 0, 32, BF16, ""), ("right", 3, 32, BF16, "gave another result 3 times"),
    ("no scale", 0, 32, BF16, "relative error is .*; rounding explains at most 1e-02"),
    ("no gradient of v", 0, 32, BF16, "relative error is 1.0e.00; rounding explains at most 1e-02"),
    ("NaN", 0, 32, BF16, "relative error is inf"), ("fails", 0, 32, BF16, "RuntimeError: gcc not found"),
    ("0.001 off", 0, 32, BF16, ""), ("0.001 off", 0, 32, torch.float32, "relative error is "),
    ("", 0, 32, BF16, "device cpu: the kernels need a GPU"), ("right", 0, 48, BF16, "head dim 48 is not 32"),
])  # fmt: skip
def test_only_kernels_that_agree_are_used(kernels, recwarn, fused, unequal, head_dim, dtype, why):
    if fused:
        kernels(fused, unequal)
    transformer = SimpleNamespace(config=ModelConfig(n_head=2, n_kv_head=1, d_model=2 * head_dim), compute_dtype=dtype)
    set_attention(transformer, CPU, {}, None)
    assert transformer.attention_backend == ("sdpa" if why else "triton")
    assert [bool(re.search(why, str(warning.message))) for warning in recwarn] == [True] * bool(why)


@pytest.mark.parametrize("backend", ["auto", "sdpa"])
def test_on_a_gpu_auto_is_the_kernels(backend):
    with FakeTensorMode(), Operators() as operators:  # a GPU without one: operators that compute shapes only
        q = torch.empty(1, 64, 2, 64, device="cuda")
        attention(q, q, q, True, backend=backend)
    assert ("nanoencoder::attention" in operators.names) == (backend == "auto")


def test_a_resumed_run_keeps_its_attention(kernels):
    now = dict(torch="2.13", device="NVIDIA H100")

    def choose(earlier, edit=""):
        model, versions = Transformer(ModelConfig()), dict(now)
        source = {"model.py": Path(model_checks.model.__file__).read_text() + edit}
        set_attention(model, CPU, versions, earlier and dict(versions=earlier, source=source))
        assert versions == now | dict(attention=model.attention_backend)
        return model.attention_backend

    kernels("fails")
    assert [choose(now | dict(attention=name)) for name in ("triton", "sdpa")] == ["triton", "sdpa"]
    kernels("right")
    for earlier in (now, dict(torch="2.11", device="NVIDIA H100", attention="sdpa"), None):
        assert choose(earlier) == "triton"
    assert choose(now | dict(attention="sdpa"), "# edited") == "triton"


def test_a_fine_tuning_keeps_the_attention_that_its_pretraining_chose(encoder, monkeypatch):
    """So a study asks once, not once for each fine-tuning. In another dtype, a fine-tuning asks again."""
    now, asked = dict(torch="2.13", device="NVIDIA H100"), []
    state = checkpoint.load(encoder) | dict(versions=now | dict(attention="triton"), settings=dict(dtype="bfloat16"))
    state["source"] = {"model.py": Path(model_checks.model.__file__).read_text()}
    monkeypatch.setattr(result, "versions", lambda device: dict(now))
    monkeypatch.setattr(model_checks, "fused_attention_fails", lambda *args: asked.append(args))
    for dtype, times in ("bfloat16", 0), ("float32", 1):
        with pytest.raises(AttributeError, match="max_len"):  # goes on to the task
            result.build(SimpleNamespace(device="cuda", dtype=dtype, seed=1), SimpleNamespace(family="sc"), state)
        assert len(asked) == times


SCATTER = """
import torch, runtime
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
_, rank, _ = runtime.set_up("cpu", False)
like = distribute_tensor(torch.zeros(4, 6), init_device_mesh("cpu", (2,)), [Shard(0)])
rows = torch.arange(4.0)[:, None]
assert runtime.scatter(rows.to("meta") if rank else rows, like).full_tensor().equal(rows)
"""


def test_optimizer_state_of_another_shape_than_its_weight_is_shared(run_world, tmp_path):
    (tmp_path / "scatter.py").write_text(SCATTER)
    assert [code for code, _ in run_world(2, [], tmp_path / "scatter.py")] == [0, 0]


def test_a_rank_without_torchrun_is_another_programs(monkeypatch):
    monkeypatch.setenv("RANK", "8")  # process 8 would train without a word and save nothing
    monkeypatch.setenv("LOCAL_RANK", "8")  # and one that is not the first of its machine would read no checksums
    assert runtime.world() == (0, 1) and runtime.local_rank() == 0


@pytest.mark.parametrize("D", [16, 48])
def test_flops_count_matches_pytorchs(D):
    shape = dict(vocab_size=512, n_layer=3, n_head=4, n_kv_head=2, d_model=64, d_ff=96, seq_len=64)
    config = ModelConfig(**shape, head_dim=D, qk_norm=True)
    model, tokens = Transformer(config), torch.randint(0, 512, (4, 64))
    model.attention_backend = "reference"  # PyTorch does not count a CPU's fused attention
    for predicted in (256, 64):
        batch = {"tokens": tokens, "positions": torch.arange(predicted), "targets": tokens.flatten()[:predicted]}
        with FlopCounterMode(display=False) as counter:
            PretrainingLoss(model)(batch, causal=False)[0].backward()
        expected = flops_per_token(model, 64, False, predicted / 256)
        assert counter.get_total_flops() / 256 == pytest.approx(expected, rel=0.02)
    attention_part = 6 * 3 * 2 * 64 * 4 * D
    full, causal, cut = (flops_per_token(model, 64, *args) for args in ((False, 1), (True, 1), (False, 1, 0.25)))
    assert full - causal == attention_part / 2 and full - cut == attention_part * 3 / 4
    model = Transformer(config)
    model.blocks[0].values = torch.nn.Embedding(512, 64)  # looked up, not multiplied
    assert flops_per_token(model, 64, False, 1) == full
    model = Transformer(config)
    model.probe = torch.nn.Linear(64, 10)
    assert flops_per_token(model, 64, False, 1) == full + 6 * 640


def test_peak_flops_by_name(monkeypatch):
    mfu = {"A100-SXM4-80GB": {"mfu": "50.0%"}, "H100 PCIe": {"mfu": "20.6%"}, "GeForce RTX 4090 Laptop GPU": {}}
    for name, expected in mfu.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA {name}")
        assert utilization("bfloat16", 312e12, 2, torch.device("cuda")) == expected, name


@pytest.mark.parametrize("split, seen", [("none", 1), ("random", 2 / 3)])
def test_mfu_counts_both_objectives(monkeypatch, split, seen):
    """A step with 3 windows of CLM and 1 of MLM, in which 40 % of the tokens are predicted."""
    model, gpu, parts = Transformer(ModelConfig()), torch.device("cuda"), {CLM(): [0, 1, 2], MLM(0.4): [3]}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H100 80GB HBM3")
    of_clm, of_mlm = flops_per_token(model, 128, True, 1, seen), flops_per_token(model, 128, False, 51 / 128, seen)
    flops = step_flops(model, parts, split)
    assert flops == pytest.approx(128 * (3 * of_clm + of_mlm))
    seconds = 2 * flops / 989e12
    assert utilization("bfloat16", flops, seconds, gpu) == {"mfu": "50.0%"}
    for dtype, timed, device in ("bfloat16", seconds, CPU), ("bfloat16", 0, gpu), ("float32", seconds, gpu):
        assert utilization(dtype, flops, timed, device) == {}
