"""Tensor parallelism by DTensors, alone or under FSDP2: `tensor_parallel.py [shard] [norm] [whole] [cleared]`."""

import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

dist.init_process_group("gloo")
replicas = 2 if "shard" in sys.argv else 1
mesh = init_device_mesh("cpu", (replicas, dist.get_world_size() // replicas), mesh_dim_names=("dp", "tp"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 61))
plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
if "norm" in sys.argv:
    # Its gradient is a partial sum on each rank, as sequences are split.
    model.insert(0, nn.LayerNorm(64))
    plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "3": RowwiseParallel()}
if "whole" in sys.argv:
    # No part of the plan.
    model.append(nn.LayerNorm(61))
parallelize_module(model, mesh["tp"], plan)
if replicas > 1:
    fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters())
for step in range(6):
    for microbatch in range(2):
        # The ranks that share a model read the same data.
        source = torch.Generator().manual_seed(100 * mesh.get_local_rank("dp") + 10 * step + microbatch)
        data, targets = torch.randn(4, 8, 64, generator=source), torch.randint(0, 61, (4, 8), generator=source)
        if replicas > 1:
            model.set_requires_gradient_sync(microbatch == 1)
        part = data.chunk(mesh["tp"].size(), 1)[mesh.get_local_rank("tp")] if "norm" in sys.argv else data
        (F.cross_entropy(model(part).flatten(0, 1), targets.flatten()) / 2).backward()
        if "cleared" in sys.argv and microbatch == 0:
            optimizer.zero_grad()
    optimizer.step()
    optimizer.zero_grad()
print("done", flush=True)
