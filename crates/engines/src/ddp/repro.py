#: head
import contextlib, os, sys, torch
import torch.distributed as dist, torch.multiprocessing as mp
#: import
from torch.nn.parallel import DistributedDataParallel

#: constants

#: model

def values(model):
    parameters = {name: layer.weight for name, layer in model.named_children()}
    p.detach().float().clone()  #: values

#: tell

def train(rank, wrong):
    dist.init_process_group("gloo", rank=rank, world_size=W)
    model = Model()
    #: made
    #: engine
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
