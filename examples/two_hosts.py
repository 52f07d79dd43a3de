"""A pipeline over two hosts, a process per rank, started by torchrun on each of them.

On host 0, whose address the others can reach, and on host 1, at about the same time:

    torchrun --nnodes 2 --node-rank 0 --nproc-per-node 1 --master-addr HOST0 --master-port 29500 examples/two_hosts.py
    torchrun --nnodes 2 --node-rank 1 --nproc-per-node 1 --master-addr HOST0 --master-port 29500 examples/two_hosts.py

To try it on one machine, give both commands there, in two terminals, with 127.0.0.1 as HOST0. With several GPUs a host,
--nproc-per-node says how many. Where a host has several networks, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME choose one.
"""

import os

import torch
from torch import nn

import headrace as hr


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "2"))  # torchrun's; alone, two threads
    torch.manual_seed(0)  # the same model and the same batches everywhere
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)), nn.Linear(64, 1))
    x = torch.randn(256, 64)
    y = x[:, :1] * x[:, 1:2]
    # "process_group" is what is used between hosts anyway; here so that one machine does as two would
    with hr.Pipeline(model, nn.MSELoss(), ranks=ranks, micro_batches=8, links="process_group") as pipe:
        optimizer = torch.optim.AdamW(pipe.named_parameters(), lr=1e-3)
        for _ in range(20):
            loss = pipe.step(x, y)
            pipe.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
        held = sum(p.numel() for p in pipe.parameters())
    where = f"node {os.environ.get('GROUP_RANK', '0')}, rank {os.environ.get('RANK', '0')}"
    print(f"{where}: loss {float(loss):.6f}, {held} parameters here", flush=True)


if __name__ == "__main__":
    main()
