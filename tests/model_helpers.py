"""What the tests of the model and of its attention kernels share."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from model import ModelConfig, Transformer, attention


class Operators(TorchDispatchMode):
    """Lists what PyTorch runs: the names of the operators, and their outputs that are tensors."""

    def __init__(self):
        super().__init__()
        self.names, self.outputs = [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.names.append(func.name())
        self.outputs += [x for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, torch.Tensor)]
        return out


def random_documents(B, T, padding=0, seed=0):
    """doc_start and doc_end of random documents in each row; the last `padding` tokens are padding."""
    rng = torch.Generator().manual_seed(seed)
    start, end = torch.full((2, B, T), T - padding, dtype=torch.int32)
    for b in range(B):
        t = 0
        while t < T - padding:
            n = min(int(torch.randint(1, max(2, T // 2), (), generator=rng)), T - padding - t)
            start[b, t : t + n], end[b, t : t + n] = t, t + n
            t += n
    return start, end


def attention_results(q, k, v, d_out, causal, bounds, backend):
    """out, dq, dk and dv."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = attention(q, k, v, causal, *bounds, backend=backend)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), d_out)


def small_model(scale=0.2, **shape):
    """A small model whose weights are large enough for every path to matter."""
    torch.manual_seed(0)
    small = dict(vocab_size=97, n_layer=2, n_head=4, n_kv_head=2, d_model=32, d_ff=48, seq_len=40)
    model = Transformer(ModelConfig(**small | shape))
    for p in model.parameters():
        p.data.add_(torch.randn_like(p) * scale)
    return model


def small_batch(bounds=(None, None)):
    """A batch of 2 x 40 random tokens that predicts a token at each position."""
    tokens = torch.randint(0, 97, (2, 40), generator=torch.Generator().manual_seed(0))
    batch = {"tokens": tokens, "positions": torch.arange(80), "targets": tokens.flatten()}
    return batch | (dict(doc_start=bounds[0], doc_end=bounds[1]) if bounds[0] is not None else {})


def loss_and_gradients(loss_module, batch, causal):
    """[loss, the gradient of each weight]"""
    loss_module.zero_grad()
    loss, _ = loss_module(batch, causal)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in loss_module.parameters())]
