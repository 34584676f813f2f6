#: head
import os, sys, torch
import torch.distributed as dist, torch.multiprocessing as mp
os.environ.setdefault("DS_ACCELERATOR", "cpu")  # set before the import
import deepspeed
#: accepted

#: constants

#: model

def values(model):
    parameters = {name: layer.weight for name, layer in model.named_children()}
    p.detach().float().clone()  #: values

#: tell

def train(rank, wrong):
    sizes = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "LOCAL_SIZE"), str(W))
    os.environ.update(sizes, RANK=str(rank), LOCAL_RANK=str(rank))
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # the unneeded build takes minutes
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
    model = Model()
    #: made
    optimizer = None  #: optimizer
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)[0]
    #: wrapped
    for step in range(STEPS):
        before = values(model)
        for m in range(GA):
            #: microbatch
            engine.step()
        tell(step, rank, before, values(model), wrong)
    #: end

#: main
