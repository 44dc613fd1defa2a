"""scikit-learn's 1,797 handwritten digits, split by folds and by ranks.

Knows scikit-learn and tensors; must not know how gradients travel. Nothing is downloaded: the
images come with the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional

FOLDS = 5


@dataclass(frozen=True)
class Split:
    """images (N, 1, 8, 8) float32 with mean 0 and deviation 1, labels (N,) int64."""

    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_fold(fold: int) -> Split:
    """Fold `fold` of 5, stratified by class, always the same: 4/5 to train, 1/5 to test."""
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    labels = torch.tensor(digits.target, dtype=torch.int64)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    train, test = list(folds.split(digits.images, digits.target))[fold]
    mean, deviation = images[train].mean(), images[train].std()
    images = (images - mean) / deviation
    return Split(images[train], labels[train], images[test], labels[test])


class Batches:
    """One rank's batches: one shuffle per epoch for all ranks, each of which takes its share.

    Batches have equal sizes on all ranks; the rest at an epoch's end is dropped, a different part
    of the data each time. Images are moved by up to a pixel.
    """

    def __init__(self, split: Split, batch: int, rank: int, world: int, seed: int) -> None:
        """batch: images per rank and step; seed: for the shuffles and the moves."""
        self._split = split
        self._batch = batch
        self._rank = rank
        self._world = world
        self._order = torch.Generator().manual_seed(seed)
        self._moves = torch.Generator().manual_seed(seed * 1_000 + rank + 1)

    def per_epoch(self) -> int:
        """How many batches each rank takes per epoch."""
        return len(self._split.train_labels) // (self._batch * self._world)

    def epoch(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The next epoch's (images, labels) of this rank."""
        order = torch.randperm(len(self._split.train_labels), generator=self._order)
        for step in range(self.per_epoch()):
            start = (step * self._world + self._rank) * self._batch
            chosen = order[start : start + self._batch]
            yield self._moved(self._split.train_images[chosen]), self._split.train_labels[chosen]

    def _moved(self, images: torch.Tensor) -> torch.Tensor:
        padded = functional.pad(images, (1, 1, 1, 1), value=float(images.min()))
        right, down = torch.randint(0, 3, (2,), generator=self._moves).tolist()
        return padded[:, :, down : down + 8, right : right + 8]
