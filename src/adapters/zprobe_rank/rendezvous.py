"""Where the ranks meet: a TCPStore at the address that the launcher listens at already."""

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
    """Joins the other ranks in a process group over Gloo."""
    # The launcher's watchdog speaks first: it knows what every rank did last.
    timeout = datetime.timedelta(seconds=2 * spec["timeout_s"])
    options = {} if listener is None else dict(master_listen_fd=listener)
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        spec["world_size"],
        rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        **options,
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=spec["world_size"], timeout=timeout)
