"""The shape and the weights of tiny models in the format of the hub."""

import torch

SHAPE = dict(vocab_size=4096, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
SHAPE |= dict(num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)
SHAPE |= dict(bos_token_id=4094, eos_token_id=4095, pad_token_id=4093)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=500000.0)
LLAMA3 |= dict(original_max_position_embeddings=32)
TOKENS = torch.randint(0, 4000, (3, 40), generator=torch.Generator().manual_seed(1))
close = dict(atol=1e-4, rtol=0)


def random_weights(model, seed=0):
    """Weights as large as after training: with smaller ones, a wrong rotation would hardly show."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.normal_(std=0.3, generator=generator).add_(name.endswith("norm.weight"))
    return model.eval()
