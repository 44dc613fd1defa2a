"""Small tasks that need no download: digits, a text, and GPTs on a longer text (gpt.py).

Digits come with scikit-learn; the text is Python's own documentation, as `help()` shows it
(pydoc_data). Knows data, nets and how ranks share data; must not know how gradients travel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from gpt import GPT, SIZES, bigram_loss, corpus
from recipes import ADAMW, SGD, Recipe
from torch import nn
from torch.nn import functional

SHARDS = ("alike", "skewed")
_CONTEXT = 32  # characters of context


@dataclass(frozen=True)
class Task:
    """What one rank trains on. A batch is (inputs, targets); a smaller `lower` score is better."""

    model: nn.Module
    lr: float
    unit: str
    """Of the score."""
    lower: bool
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    """The next batch of this rank."""
    score: Callable[[nn.Module], float]
    """Of a model, on data that no rank trains on."""
    recipe: Recipe = SGD
    about: dict[str, Any] = field(default_factory=dict)
    """What a record says of the task beside."""

    def loss(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Cross entropy, over all but the last dimension of the output."""
        return functional.cross_entropy(output.flatten(0, -2), targets.flatten())


def _mlp() -> nn.Module:
    """50,826 parameters."""
    return nn.Sequential(
        *(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    )


def _convolutions() -> nn.Module:
    """26,090 parameters, of them 23,184 in three convolutions."""
    layers: list[nn.Module] = [nn.Unflatten(1, (1, 8, 8))]
    for channels, more in ((1, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(channels, more, 3, padding=1), nn.GroupNorm(8, more), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if channels > 1 else []
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


def digits(
    rank: int, ranks: int, shards: str, seed: int, *, net: Callable[[], nn.Module] = _mlp
) -> Task:
    """A net on 8x8 digits: percentage of test images classified correctly.

    skewed: images are dealt out in the order of their labels, so with ten ranks each would know one
    digit. The test is a fifth of the images, a different one for each seed.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).flatten(1)
    labels = torch.tensor(found.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=_generator(seed, 0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    images = (images - images[train].mean()) / images[train].std()
    if shards == "skewed":
        train = train[labels[train].argsort(stable=True)]
        mine = train.tensor_split(ranks)[rank]
    else:
        mine = train[rank::ranks]
    draws = _generator(seed, 1 + rank)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        chosen = mine[torch.randint(len(mine), (16,), generator=draws)]
        return images[chosen], labels[chosen]

    def score(model: nn.Module) -> float:
        with torch.no_grad():
            return 100 * (model(images[test]).argmax(1) == labels[test]).double().mean().item()

    torch.manual_seed(seed)
    return Task(net(), 0.05, "% right", False, batch, score)


def text(rank: int, ranks: int, shards: str, seed: int) -> Task:
    """A transformer of about 114,000 parameters on characters: nats per character of unseen text.

    skewed: each rank has its own topics, alphabetical neighbours; alike: parts of all topics. Every
    tenth line of each topic is for the test.
    """
    from pydoc_data.topics import topics

    known = sorted({each for topic in topics.values() for each in topic if each.isascii()})
    number = {each: i for i, each in enumerate(known)}
    train, test = [], []
    for _, topic in sorted(topics.items()):
        for i, line in enumerate(topic.splitlines(keepends=True)):
            (test if i % 10 == 9 else train).extend(number[c] for c in line if c in number)
    here, there = torch.tensor(train), torch.tensor(test)
    parts = here.tensor_split(ranks if shards == "skewed" else 64)
    mine = parts[rank] if shards == "skewed" else torch.cat(parts[rank::ranks])
    draws = _generator(seed, 1 + rank)
    fixed = torch.randint(len(there) - _CONTEXT - 1, (128,), generator=_generator(0, 0))

    def cut(of: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = of[begins[:, None] + torch.arange(_CONTEXT + 1)]
        return rows[:, :-1], rows[:, 1:]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return cut(mine, torch.randint(len(mine) - _CONTEXT - 1, (6,), generator=draws))

    def score(model: nn.Module) -> float:
        inputs, targets = cut(there, fixed)
        with torch.no_grad():
            return functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten()).item()

    torch.manual_seed(seed)
    return Task(Transformer(len(known)), 0.2, "nats a character", True, batch, score)


class Transformer(nn.Module):
    """Characters (N, L) to logits (N, L, characters): two pre-norm layers of four heads."""

    def __init__(self, characters: int, width: int = 64, layers: int = 2) -> None:
        """characters: how many there are."""
        super().__init__()
        self.characters = nn.Embedding(characters, width)
        self.places = nn.Parameter(torch.randn(_CONTEXT, width) / 10)
        layer = nn.TransformerEncoderLayer(
            *(width, 4, 4 * width), dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, characters)
        mask = nn.Transformer.generate_square_subsequent_mask(_CONTEXT)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The logits of the next character at each position."""
        x = self.characters(inputs) + self.places[: inputs.shape[1]]
        return self.head(self.norm(self.layers(x, mask=self.mask, is_causal=True)))


def gpt(rank: int, ranks: int, shards: str, seed: int, *, size: str) -> Task:
    """A GPT on networkx's docstrings with AdamW: nats per character of held-out modules.

    skewed: each rank has its own modules, alphabetical neighbours; alike: parts of all.
    """
    known, context = corpus(), SIZES[size].context
    parts = known.train.tensor_split(ranks if shards == "skewed" else 16 * ranks)
    own = parts[rank] if shards == "skewed" else torch.cat(parts[rank::ranks])
    draws = _generator(seed, 1 + rank)
    begins = torch.arange(256) * (len(known.held_out) - context - 1) // 256

    def cut(of: torch.Tensor, begins: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = of[begins[:, None] + torch.arange(context + 1)]
        return rows[:, :-1], rows[:, 1:]

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return cut(own, torch.randint(len(own) - context - 1, (4,), generator=draws))

    def score(model: nn.Module) -> float:
        losses = []
        with torch.no_grad():
            for some in begins.split(16):
                inputs, targets = cut(known.held_out, some)
                logits = model(inputs).flatten(0, -2)
                losses.append(functional.cross_entropy(logits, targets.flatten()).item())
        return sum(losses) / len(losses)

    torch.manual_seed(seed)
    about = {"bigrams": bigram_loss(), "text": known.digest[:16]}
    model = GPT(known.characters, SIZES[size])
    return Task(model, 4e-3, "nats a character", True, batch, score, ADAMW, about)


TASKS: dict[str, Callable[[int, int, str, int], Task]] = {
    "digits": digits,
    "digits-conv": partial(digits, net=_convolutions),
    "text": text,
    **{size: partial(gpt, size=size) for size in SIZES},
}


def _generator(seed: int, of: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * seed + of)
