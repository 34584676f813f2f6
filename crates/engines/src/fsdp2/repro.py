#: head
import os, sys, torch
import torch.distributed as dist, torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

#: constants

#: model

def values(model):
    parameters = {name: layer.weight for name, layer in model.named_children()}
    getattr(p.detach(), "full_tensor", p.detach)().clone()  #: values

#: tell

def train(rank, wrong):
    dist.init_process_group("gloo", rank=rank, world_size=W)
    model = Model()
    #: made
    policy = MixedPrecisionPolicy(param_dtype=None, reduce_dtype=None)
    mesh = None
    for module in [*model.children(), model]:
        fully_shard(module, mesh=mesh)
        #: module
    #: sharded
    optimizer = None  #: optimizer
    for step in range(STEPS):
        before = values(model)
        for m in range(GA):
            #: microbatch
        optimizer.step()
        optimizer.zero_grad()
        tell(step, rank, before, values(model), wrong)
    #: end

#: main
