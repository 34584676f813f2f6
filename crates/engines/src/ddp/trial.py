@fact
def ddp():
    """True if one backward under DDP succeeds on the CPU."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    def step():
        module = DistributedDataParallel(torch.nn.Linear(4, 4))
        module(torch.ones(1, 4)).sum().backward()
        return True

    return alone(step)


@fact
def ddp_arguments():
    """The names of the arguments of DistributedDataParallel."""
    import inspect

    from torch.nn.parallel import DistributedDataParallel

    return sorted(inspect.signature(DistributedDataParallel.__init__).parameters)
