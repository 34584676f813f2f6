"""The meeting point of the ranks: a TCPStore at the address that the launcher listens at already."""

import datetime
import os

import torch.distributed as dist


def keep_listener(fd):
    """The listening socket, if this torch can take it over; else the port is freed for it."""
    if "master_listen_fd" in (dist.TCPStore.__init__.__doc__ or ""):
        return fd
    os.close(fd)
    return None


def join(spec, rank, listener):
    """Joins the other ranks in a process group over the run's backend; returns a group of the probe's own, over
    Gloo, whose collectives cannot meet the engine's."""
    # As `contract::patience` has it. The launcher's watchdog speaks first: it knows what every rank did
    # last, and lets a rank be waited for while that one works.
    timeout = datetime.timedelta(seconds=min(100 * spec["timeout_s"], 2_000_000))
    store = _store(spec["world_size"], rank == 0, timeout, listener)
    dist.init_process_group(spec["backend"], store=store, rank=rank, world_size=spec["world_size"], timeout=timeout)
    return dist.new_group(backend="gloo", timeout=timeout)


def _store(world_size, is_master, timeout, listener):
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    options = dict(timeout=timeout, wait_for_workers=False)
    if listener is None:
        return dist.TCPStore(*address, world_size, is_master, **options)
    options.update(master_listen_fd=listener)
    try:
        return dist.TCPStore(*address, world_size, is_master, **options)
    except NotImplementedError:
        # Up to torch 2.6 only the older of the store's two back ends takes over a socket.
        return dist.TCPStore(*address, world_size, is_master, use_libuv=False, **options)
