"""Handles parameters that tensor parallelism has cut into DTensors.

The ranks of a device mesh that hold different parts of a DTensor do not average its gradients. So zprobe treats each
part as a separate parameter, which belongs to the ranks that hold the part.
"""

from zprobe_exec import objects
from zprobe_exec.turns import Unreadable


class Part:
    """This rank's part of a parameter under tensor parallelism."""

    def __init__(self, spec, shape):
        """`spec` is the DTensorSpec of the whole parameter, and `shape` is the shape of the part."""
        self.mesh, self.placements, self.shape = spec.mesh, spec.placements, list(shape)

    def suffix(self):
        """The suffix of the parameter's name that gives the place of the part in the mesh, such as `[tp=1]`."""
        if self.mesh.get_coordinate() is None:
            raise Unreadable("this rank has a parameter whose device mesh does not include the rank")
        names = self.mesh.mesh_dim_names or ["mesh %d" % number for number in range(self.mesh.ndim)]
        return "[%s]" % ", ".join("%s=%d" % pair for pair in zip(names, self.mesh.get_coordinate()))

    def wrap(self, values, gradient):
        """A DTensor with the given values of this part, as the replacement of `gradient`."""
        kind = type(gradient)
        # The replacement has the placements of the parameter, so zprobe does not diagnose a sum over the mesh in the
        # script itself.
        return kind.from_local(
            values, self.mesh, self.placements, run_check=False, shape=gradient.shape, stride=gradient.stride()
        )


def sharded_params():
    """The `FSDPParam` of each parameter that FSDP2 has cut, by the `id` of this rank's shard and by the `id` of the
    gathered parameter, which replaces the shard in the module during forward and backward."""
    of_type = objects.named("FSDPParam")
    tensors = ((getattr(it, name, None), it) for it in of_type for name in ("sharded_param", "_unsharded_param"))
    return {id(tensor): it for tensor, it in tensors if tensor is not None}


def gathered_params():
    """The `id` of each whole parameter that FSDP2 puts in the place of a shard for a forward. An optimizer must hold
    the shards instead, which get the gradients."""
    whole = (getattr(it, "_unsharded_param", None) for it in sharded_params().values())
    return {id(it) for it in whole if it is not None}


def part_of(param, sharded):
    """This rank's part of a parameter that tensor parallelism has cut; `None` for other parameters. `sharded` is the
    `FSDPParam` of the parameter if FSDP2 has cut it, too, else `None`."""
    if sharded is not None:
        return Part(sharded._tp_spec, sharded._orig_size) if getattr(sharded, "is_dtensor", False) else None
    spec = getattr(param, "_spec", None)
    return Part(spec, param.to_local().shape) if hasattr(param, "device_mesh") and spec is not None else None


def shard_number(tensor):
    """The number of this rank's shard of a DTensor, if several ranks of the mesh hold each shard; else `None`."""
    spec = getattr(tensor, "_spec", None)
    coordinate = spec.mesh.get_coordinate() if hasattr(tensor, "device_mesh") and spec is not None else None
    if coordinate is None:
        return None
    placements = list(enumerate(spec.placements))
    if not any(placement.is_replicate() and spec.mesh.size(at) > 1 for at, placement in placements):
        return None
    number = 0
    for at, placement in placements:
        if not placement.is_replicate():
            number = number * spec.mesh.size(at) + coordinate[at]
    return number


def shard_start(sharded):
    """The first element of FSDP2's shard within this rank's part of a parameter; `None` if FSDP2 has cut a dimension
    other than the first."""
    if not hasattr(sharded.mesh_info, "shard_mesh_size"):
        return 0
    if sharded.fsdp_placement.dim != 0:
        return None
    row = 1
    for side in sharded._orig_size[1:]:
        row *= side
    ranks = sharded.mesh_info.shard_mesh_size
    rows = -(-sharded._orig_size[0] // ranks)
    return min(sharded.mesh_info.shard_mesh_rank * rows, sharded._orig_size[0]) * row


def local(gradient):
    """This rank's local part of a gradient that may be a DTensor."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def refuse_mixed(params):
    """Raises `Unreadable` if tensor parallelism has cut some parameters of a model while others are whole on all ranks:
    it is unknown which ranks average the gradients of the whole parameters.

    `params` has pairs of a trainable parameter's name and true if the parameter is cut.
    """
    whole = [name for name, is_cut in params if not is_cut]
    if whole and len(whole) < len(params):
        raise Unreadable(
            "tensor parallelism has cut some parameters but not %s: which ranks average the gradients of the latter "
            "is unknown" % (", ".join(whole[:4]) + (" and %d more" % (len(whole) - 4) if len(whole) > 4 else ""))
        )


def refuse_partial(name, gradient):
    """Raises `Unreadable` for a gradient that is summed over a mesh only after autograd has delivered it."""
    if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
        raise Unreadable(
            "the gradient of %s is summed over a device mesh after autograd: run without --observe, so that codes "
            "replace gradients" % name
        )
