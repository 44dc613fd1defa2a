"""ResNet-20 as He et al. (2016) built it for CIFAR-10, one grey channel.

Uses only torch.nn. 269,434 parameters in three stages of 16, 32 and 64 channels.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class _Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which subsamples and pads when the shape changes."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.padding = channels - channels_in

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        shortcut = images[:, :, :: self.stride, :: self.stride]
        if self.padding:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.padding))
        out = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(out)) + shortcut)


class ResNet20(nn.Module):
    """(N, 1, H, W) images to (N, 10) logits; digits come as 8x8, so the last stage sees 2x2."""

    def __init__(self, classes: int = 10) -> None:
        """classes: the number of logits."""
        super().__init__()
        stages, channels_in = [], 16
        for channels, stride in ((16, 1), (32, 2), (64, 2)):
            for index in range(3):
                stages.append(_Block(channels_in, channels, stride if index == 0 else 1))
                channels_in = channels
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels_in, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The logits of the images."""
        return self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))
