"""Tensors as a rank holds them."""

import torch
import torch.distributed as dist


def flat(tensor):
    """A tensor's content on this rank, flat."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)


def dense(gradient):
    """A gradient, flat; None where there is none, or one that is no dense row of real numbers."""
    if gradient is None or gradient.layout != torch.strided or gradient.is_complex():
        return None
    return flat(gradient)


def whole(tensor):
    """The whole of a tensor, gathered if it is a `DTensor`. Modules without a backward have not resharded:
    their parameters are whole already, and a norm over no gradient is a plain number."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    if tensor.device.type != "cpu" and dist.get_backend() == "gloo":
        return _on_host(tensor).full_tensor().to(tensor.device)
    return tensor.full_tensor()


def own_part(tensor):
    """The whole of a tensor, or the rows of it that tensor parallelism gives this rank: along the dimension of a
    device mesh that is called `tp`."""
    mesh = getattr(tensor, "device_mesh", None)
    names = (mesh.mesh_dim_names or ()) if mesh is not None else ()
    if "tp" not in names:
        return whole(tensor)
    return whole(tensor).chunk(mesh.size(names.index("tp")))[mesh.get_local_rank("tp")]


def shard_start(tensor):
    """The first element, in this rank's part of a parameter, of a `DTensor` that FSDP2 has cut along dimension 0, as
    `torch.chunk` does: all chunks but the last ones are equal."""
    mesh, rows, shards, number = tensor.device_mesh, tensor.shape[0], 1, 0
    for dimension, placement in enumerate(tensor.placements):
        if mesh.mesh_dim_names and mesh.mesh_dim_names[dimension] == "tp":
            rows //= mesh.size(dimension)
        elif not placement.is_replicate():
            shards, number = mesh.size(dimension), mesh.get_local_rank(dimension)
    return min(-(-rows // shards) * number, rows) * (tensor.numel() // tensor.shape[0])


#: Meshes of the host's devices, by those of the accelerators.
_host_meshes = {}


def _on_host(tensor):
    """A `DTensor` with its elements on the host: over Gloo, gathering one from GPUs ends torch 2.11.0 by a SIGSEGV."""
    mesh = tensor.device_mesh
    if mesh not in _host_meshes:
        _host_meshes[mesh] = type(mesh)("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    settings = dict(run_check=False, shape=tensor.shape, stride=tensor.stride())
    return type(tensor).from_local(tensor.to_local().cpu(), _host_meshes[mesh], tensor.placements, **settings)
