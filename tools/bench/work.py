"""Runs one of two ranks that exchange messages through torch.distributed's send and recv; started
by beside.py. Rank 1 measures: half a round trip (lat), or a window one way with one byte back (bw).

MASTER_ADDR=127.0.0.1 MASTER_PORT=29600 WORLD_SIZE=2 tools/bench/work.py lat 8 16 1000 RANK
"""

import json
import sys
import time

import torch
import torch.distributed as dist

import gtopk  # noqa: F401

WARM_UP = 5


def main() -> int:
    """Prints the seconds that one message took one way in each round."""
    mode, rank = sys.argv[1], int(sys.argv[5])
    size, window, rounds = map(int, sys.argv[2:5])
    dist.init_process_group("gtopk", init_method="env://", rank=rank, world_size=2)
    sent, received = (torch.full((size,), value, dtype=torch.uint8) for value in (1, 0))
    back = torch.zeros(1, dtype=torch.uint8)
    other = 1 - rank
    samples = []
    for _ in range(WARM_UP + rounds):
        begin = time.perf_counter()
        if mode == "lat" and rank == 1:
            dist.send(sent, other)
            dist.recv(received, other)
        elif mode == "lat":
            dist.recv(received, other)
            dist.send(sent, other)
        elif rank == 1:
            for work in [dist.isend(sent, other) for _ in range(window)]:
                work.wait()
            dist.recv(back, other)
        else:
            for work in [dist.irecv(received, other) for _ in range(window)]:
                work.wait()
            dist.send(back, other)
        taken = time.perf_counter() - begin
        samples.append(taken / (2 if mode == "lat" else window))
    print(json.dumps(samples[WARM_UP:]))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
