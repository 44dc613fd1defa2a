"""Runs one rank: python -m gpu_check.ranks RANK PART SIZE FOLDER DEVICE SMALL.

It meets the other ranks in a file in FOLDER, runs the part, and writes its answer there as JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys

import torch
import torch.distributed as dist

from gpu_check import checks, figures
from gpu_check.place import Place

PARTS = {
    "bits": checks.bits,
    "dense": checks.dense,
    "training": checks.training,
    "profile": checks.profile,
    "first_call": figures.first_call,
    "compress": figures.compress,
    "messages": figures.messages,
}


def main(rank: int, part: str, size: int, folder: str, device: str, small: bool) -> None:
    served = "cpu:gtopk,cuda:gtopk"
    if device == "cuda":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    else:
        import fake  # tests/torch/fake

        fake.use()
        served = f"cpu:gtopk,{device}:gtopk"
    store = dist.FileStore(f"{folder}/store", size)
    dist.init_process_group(served, store=store, rank=rank, world_size=size)
    answer = PARTS[part](Place(rank, size, device, small))
    pathlib.Path(folder, f"answer{rank}").write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:6], sys.argv[6] == "1")
