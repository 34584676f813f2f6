"""Helpers for tensors of which a rank may hold only a part."""

import math

import torch
import torch.distributed as dist


def flat(tensor):
    """The flat content of a tensor on this rank: of a `DTensor` the local part."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)


def dense(gradient):
    """The flat content of a gradient; `None` if there is no gradient, or if it is sparse or complex."""
    if gradient is None or gradient.layout != torch.strided or gradient.is_complex():
        return None
    return flat(gradient)


def whole(tensor):
    """The whole tensor, gathered from all ranks if it is a `DTensor`. Some tensors are whole already: parameters of a
    module that was not resharded because the module had no backward, and the norm over no gradients."""
    if not hasattr(tensor, "full_tensor"):
        return tensor
    if tensor.device.type != "cpu" and dist.get_backend() == "gloo":
        return _on_host(tensor).full_tensor().to(tensor.device)
    return tensor.full_tensor()


def own_part(tensor):
    """The whole tensor; under tensor parallelism (a device mesh with a dimension named `tp`) only the rows of this
    rank along that dimension."""
    mesh = getattr(tensor, "device_mesh", None)
    names = (mesh.mesh_dim_names or ()) if mesh is not None else ()
    if "tp" not in names:
        return whole(tensor)
    return whole(tensor).chunk(mesh.size(names.index("tp")))[mesh.get_local_rank("tp")]


def shard_runs(tensor):
    """The runs of consecutive elements in this rank's shard of a `DTensor`, as pairs of the first element and the
    number of elements, counted within the rank's part under tensor parallelism. FSDP2 cuts along a dimension like
    `torch.chunk`: all chunks but the last ones have the same size."""
    mesh, shape, cut, shards, number = tensor.device_mesh, list(tensor.shape), 0, 1, 0
    for dimension, placement in enumerate(tensor.placements):
        if mesh.mesh_dim_names and mesh.mesh_dim_names[dimension] == "tp":
            shape[0] //= mesh.size(dimension)
        elif not placement.is_replicate():
            cut, shards, number = placement.dim, mesh.size(dimension), mesh.get_local_rank(dimension)
    inner, side = math.prod(shape[cut + 1 :]), -(-shape[cut] // shards)
    start, end = (min(side * place, shape[cut]) * inner for place in (number, number + 1))
    return [(row * shape[cut] * inner + start, end - start) for row in range(math.prod(shape[:cut]))]


#: The meshes of CPU devices, by the mesh of accelerators that each of them mirrors.
_host_meshes = {}


def _on_host(tensor):
    """A copy of a `DTensor` with its elements on the host: gathering a `DTensor` on GPUs over Gloo crashes torch 2.11.0
    with SIGSEGV."""
    mesh = tensor.device_mesh
    if mesh not in _host_meshes:
        _host_meshes[mesh] = type(mesh)("cpu", mesh.mesh, mesh_dim_names=mesh.mesh_dim_names)
    settings = dict(run_check=False, shape=tensor.shape, stride=tensor.stride())
    return type(tensor).from_local(tensor.to_local().cpu(), _host_meshes[mesh], tensor.placements, **settings)
