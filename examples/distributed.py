"""Two ranks into one run, and one tensor from the pieces of both:

python examples/distributed.py [folder]"""

import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import tensortap as tt


def work(rank: int, port: int, folder: str) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    weight = torch.randn(8, 4)  # the whole; each rank has half of its rows
    torch.manual_seed(1)
    x = torch.randn(3, 4)
    tt.init(folder)  # both ranks get the same folder
    tt.dump(x @ weight.chunk(2)[rank].T, "out")
    tt.close()
    dist.destroy_process_group()


def main(folder: str = "experiments") -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(work, (port, folder), nprocs=2)
    (path,) = (entry for entry in os.scandir(folder) if entry.is_dir())
    run = tt.Run(path.path)
    print(run)
    print("put together along the last axis:", tuple(tt.whole(run.filter("out"), dim=-1).shape))


if __name__ == "__main__":
    main(*sys.argv[1:])
