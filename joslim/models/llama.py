"""A small decoder of text like Llama (H. Touvron and others, 2023): rotary positions, RMSNorm,
SwiGLU, and grouped-query attention.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD_DIM = 32


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, heads * HEAD_DIM, bias=False)
        self.k = nn.Linear(width, key_heads * HEAD_DIM, bias=False)
        self.v = nn.Linear(width, key_heads * HEAD_DIM, bias=False)
        self.o = nn.Linear(heads * HEAD_DIM, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, tokens = x.shape[:2]
        q, k, v = (
            layer(x).view(batch, tokens, -1, HEAD_DIM).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(
            rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of numbers of each head by the position: [n, heads, tokens, HEAD_DIM]."""
    first, second = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, key_heads)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        y = self.mlp_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Scores of the next token after each token: [n, tokens] -> [n, tokens, vocabulary]."""

    slim_defaults = {"input": (128,), "dtype": torch.int64, "low": 0.25}

    def __init__(
        self,
        num_classes: int = 256,
        width: int = 128,
        depth: int = 4,
        heads: int = 4,
        key_heads: int = 2,
        hidden: int = 352,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_classes, width)
        self.blocks = nn.ModuleList(Block(width, heads, key_heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, num_classes, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)
        rates = torch.arange(0, HEAD_DIM, 2, device=tokens.device, dtype=torch.float32) / HEAD_DIM
        angles = places[:, None] * 10000.0**-rates
        cos, sin = angles.cos(), angles.sin()
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def tiny_llama(num_classes: int = 256) -> Llama:
    """Decoder of 4 blocks, 128 channels, 4 heads and 0.8 million parameters."""
    return Llama(num_classes)
