@fact
def fsdp1():
    """True if one backward under FullyShardedDataParallel succeeds on the CPU."""
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    def step():
        module = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
        module(torch.ones(1, 4)).sum().backward()
        return True

    return alone(step)
