"""The rendezvous of the ranks: a TCPStore at the address on which the launcher listens already."""

import datetime
import os

import torch.distributed as dist


def keep_listener(fd):
    """The descriptor of the listening socket, if this release of torch can use an open socket. Else the socket is
    closed, so that torch can bind the port, and the result is `None`."""
    if "master_listen_fd" in (dist.TCPStore.__init__.__doc__ or ""):
        return fd
    os.close(fd)
    return None


def join(spec, rank, listener):
    """Joins the other ranks in the default process group over the run's backend. Returns a separate Gloo group for
    zprobe, whose collectives cannot be confused with the engine's."""
    # The same formula as in `contract::patience`. The launcher's watchdog acts earlier: the watchdog knows the last
    # event of every rank, and allows ranks to wait for a rank that still works.
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
        # Up to torch 2.6 only the older of the store's two backends can use an open socket.
        return dist.TCPStore(*address, world_size, is_master, use_libuv=False, **options)
