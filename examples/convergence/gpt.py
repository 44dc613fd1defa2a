"""A small GPT and the text it learns: the docstrings of networkx, which tools/setup installs.

The version is pinned, so every machine has the same text; `Corpus.digest` proves it. Knows nothing
of ranks.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import pathlib
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

HELD_OUT = 10  # every tenth module is for validation


class Size(NamedTuple):
    """A net's dimensions. context: characters that a prediction may look back on."""

    width: int
    layers: int
    context: int


# By about how many parameters they have.
SIZES = {
    "gpt-0.1m": Size(64, 2, 64),
    "gpt-0.4m": Size(96, 3, 64),
    "gpt-0.8m": Size(128, 4, 128),
    "gpt-1.8m": Size(192, 4, 128),
}


class Corpus(NamedTuple):
    """Characters as numbers."""

    train: torch.Tensor
    held_out: torch.Tensor
    characters: int
    """How many different ones there are."""
    digest: str
    """SHA-256 of both parts, in UTF-8."""


def docstrings(source: str) -> str:
    """All docstrings of a module, outermost first."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, documented))
    return "".join(f"{text}\n\n" for node in nodes if (text := ast.get_docstring(node)))


@functools.cache
def corpus() -> Corpus:
    """The docstrings of networkx without its tests, in the order of the modules' paths."""
    found = importlib.util.find_spec("networkx")
    if found is None or found.origin is None:
        raise RuntimeError("the GPT reads networkx's docstrings: pip install networkx")
    folder = pathlib.Path(found.origin).parent
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.py"))
    texts = [
        docstrings((folder / path).read_text(encoding="utf-8"))
        for path in paths
        if "tests" not in pathlib.PurePosixPath(path).parts
    ]
    parts = ["", ""]
    for i, text in enumerate(texts):
        parts[i % HELD_OUT == HELD_OUT - 1] += text
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    known = sorted({each for part in parts for each in part if each.isascii()})
    number = {each: i for i, each in enumerate(known)}
    train, held_out = (torch.tensor([number[c] for c in part if c in number]) for part in parts)
    return Corpus(train, held_out, len(known), digest)


@functools.cache
def bigram_loss() -> float:
    """Nats a character of held-out text, by how often each pair of characters is in the other."""
    text = corpus()
    pairs = text.train[:-1] * text.characters + text.train[1:]
    counts = torch.bincount(pairs, minlength=text.characters**2).double() + 0.1
    logs = counts.view(text.characters, -1)
    logs = (logs / logs.sum(1, keepdim=True)).log()
    return -logs[text.held_out[:-1], text.held_out[1:]].mean().item()


HEAD = 32  # width of an attention head


@functools.cache
def turns(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine (L, HEAD / 2) of each position's angles."""
    angles = torch.outer(torch.arange(length), 1000.0 ** -torch.linspace(0, 1, HEAD // 2))
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions (Su et al., arXiv 2104.09864) for queries or keys (N, heads, L, HEAD)."""
    cosine, sine = turns(x.shape[2])
    left, right = x.chunk(2, dim=3)
    return torch.cat([left * cosine - right * sine, left * sine + right * cosine], dim=3)


class Block(nn.Module):
    """Pre-norm attention and MLP; shapes (N, L, width)."""

    def __init__(self, width: int, layers: int) -> None:
        """layers: of the whole net; the deeper it is the less each adds at first."""
        super().__init__()
        self.heads = width // HEAD
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.attended = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        for linear in (self.qkv, self.up):
            nn.init.normal_(linear.weight, std=width**-0.5)
        for linear in (self.attended, self.down):
            nn.init.normal_(linear.weight, std=(2 * layers * linear.in_features) ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Adds what it computes to x."""
        parts = self.qkv(self.norms[0](x)).unflatten(2, (3, self.heads, HEAD))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    """Characters (N, L) to logits (N, L, characters)."""

    def __init__(self, characters: int, size: Size) -> None:
        """characters: how many there are."""
        super().__init__()
        self.tokens = nn.Embedding(characters, size.width)
        self.blocks = nn.Sequential(*(Block(size.width, size.layers) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, characters, bias=False)
        nn.init.zeros_(self.head.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of the next character at each position."""
        return self.head(self.norm(self.blocks(self.tokens(inputs))))
