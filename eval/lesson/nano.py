"""The whole idea in one file: one Transformer, one flag, two objectives. It only needs torch.

    python eval/lesson/nano.py

A model learns to predict letters: first as a decoder, with causal language modeling (CLM), then as an encoder with the
same weights, with masked language modeling (MLM). The objectives differ in four places. Look for "1 of 4" to "4 of 4".
Each heading names the file that this part is a small version of. Then edit it: switch_step = 0 is pure MLM,
switch_step = max_steps is pure CLM.
"""

import gzip
import json
import math
import re
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F

# --- Settings: train.py ---
max_steps = 800
switch_step = 300  # steps before it are CLM, the rest MLM
batch_size = 16  # windows in a step
T = 64  # letters in a window
mask_ratio = 0.4  # the fraction of the letters that MLM hides
n_layer, n_head, d_model = 3, 4, 96
lr = 5e-3  # peak learning rate
sentence = "_his func_ion ret_rns tr_e if the ob_ect is a li_t of str_ngs"  # to fill in; at most T letters

# --- Text to numbers: data/prepare.py. Here a token is a letter, there a piece of a word. ---
LETTERS = " abcdefghijklmnopqrstuvwxyz.,_"
MASK = LETTERS.index("_")  # stands for a hidden letter


def encode(text):
    return torch.tensor([LETTERS.index(letter) for letter in text])


path = Path(__file__).parents[2] / "data/embedded/python-docs.jsonl.gz"  # Python's documentation
text = " ".join(json.loads(line)["text"] for line in gzip.open(path, "rt", encoding="utf-8"))
tokens = encode(re.sub("[^a-z.,]+", " ", text.lower()))
train_tokens, val_tokens = tokens[:-50_000], tokens[-50_000:]


# --- Numbers to batches: data/loader.py ---
def windows(tokens, n, seed):
    """Return n random windows, (n, T). The seed decides which, and what MLM then hides in them."""
    torch.manual_seed(seed)
    start = torch.randint(len(tokens) - T, (n, 1))
    return tokens[start + torch.arange(T)]


# --- The model: model.py ---
def attention_mask(T, causal):
    """Return which positions (columns) each position (row) sees, bool (T, T)."""
    see = torch.ones(T, T, dtype=torch.bool)
    return see.tril() if causal else see  # 1 of 4, the attention mask: CLM sees the past, MLM everything


def rotate(x):
    """Rotate queries or keys (B, H, T, D) by angles that grow with the position: dot products depend on distances."""
    T, D = x.shape[-2:]
    angle = torch.arange(T)[:, None] * 100 ** (-torch.arange(0, D, 2) / D)  # (T, D/2)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), dim=-1)


class Block(nn.Module):
    """One layer: x + attention(norm(x)), then x + MLP(norm(x))."""

    def __init__(self):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.RMSNorm(d_model), nn.RMSNorm(d_model)
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.attn_out = nn.Linear(d_model, d_model, bias=False)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x, see):
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (3, n_head, -1))  # (B, T, 3, H, D)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (B, H, T, D) each
        scores = rotate(q) @ rotate(k).transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, H, T, T)
        y = scores.masked_fill(~see, -math.inf).softmax(-1) @ v  # (B, H, T, D)
        x = x + self.attn_out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(self.mlp_norm(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), d_model)
        self.blocks = nn.ModuleList(Block() for _ in range(n_layer))
        self.norm = nn.RMSNorm(d_model)
        self.head = nn.Linear(d_model, len(LETTERS), bias=False)

    def forward(self, tokens, causal):
        x = self.embedding(tokens)  # (B, T, d_model)
        see = attention_mask(tokens.shape[1], causal)
        for block in self.blocks:
            x = block(x, see)
        return self.head(self.norm(x))  # (B, T, letters): the logits at each position


# --- The objectives: data/objective.py ---
def examples(tokens, causal):
    """Return the letters that the input shows and those that each position predicts (-1: none), both (B, T)."""
    if causal:  # CLM
        predicts = (torch.arange(T) < T - 1).expand_as(tokens)  # 2 of 4, the positions that predict: all but the last
        shown = tokens  # 3 of 4, the input: the text itself; the attention mask hides the answers
        target = tokens.roll(-1, dims=1)  # 4 of 4, the target: the next letter
    else:  # MLM
        predicts = torch.rand(tokens.shape) < mask_ratio  # 2 of 4, the positions that predict: a random part
        shown = tokens.masked_fill(predicts, MASK)  # 3 of 4, the input: a mask in place of each answer
        target = tokens  # 4 of 4, the target: the letter itself
    return shown, target.masked_fill(~predicts, -1)


def loss_of(tokens, causal):
    """Return the mean of -ln p over the predicted letters, in nats. p is the probability of the right letter."""
    shown, targets = examples(tokens, causal)
    return F.cross_entropy(model(shown, causal).flatten(0, 1), targets.flatten(), ignore_index=-1)


@torch.no_grad()
def report(step):
    """Print both validation losses (as data/validation.py does) and the sentence filled in (as eval/sample.py does)."""
    clm, mlm = (loss_of(windows(val_tokens, 128, seed=0), causal) for causal in (True, False))
    shown = encode(sentence)
    guesses = model(shown[None], causal=False)[0].argmax(-1)
    filled = "".join(LETTERS[i] for i in torch.where(shown == MASK, guesses, shown))
    print(f"{step:4}  {clm:8.2f}  {mlm:8.2f}  {filled}", flush=True)


# --- Training: train.py ---
torch.set_num_threads(1)  # faster for so small a model
torch.manual_seed(0)
model = Transformer()
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
print(f"step  CLM loss  MLM loss  {sentence}")
for step in range(max_steps):
    if step % 100 == 0:
        report(step)
    causal = step < switch_step  # the flag: first a decoder, then an encoder, with the same weights
    loss_of(windows(train_tokens, batch_size, seed=step), causal).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.param_groups[0]["lr"] = lr * min(1, (step + 1) / 50, (max_steps - step) / 300)  # warmup, constant, decay
    optimizer.step()
    optimizer.zero_grad()
report(max_steps)
