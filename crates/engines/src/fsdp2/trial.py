@fact
def fsdp2():
    """True if one backward under fully_shard succeeds on the CPU."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def step():
        module = torch.nn.Linear(4, 4)
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        module(torch.ones(1, 4)).sum().backward()
        return True

    return alone(step)


@fact
def fsdp2_methods():
    """The names of the public methods of a module under fully_shard."""
    from torch.distributed import fsdp

    return sorted(name for name in dir(fsdp.FSDPModule) if not name.startswith("_"))
