"""Parameters that tensor parallelism has cut into DTensors.

The ranks of a device mesh that hold different parts of such a parameter do not average its gradients: each part
is a parameter of its own, of the ranks that hold it.
"""

from zprobe_exec import objects
from zprobe_exec.turns import Unreadable


class Part:
    """This rank's part of a parameter."""

    def __init__(self, spec, shape):
        """`spec` is the DTensorSpec of the whole parameter, `shape` that of the part."""
        self.mesh, self.placements, self.shape = spec.mesh, spec.placements, list(shape)

    def suffix(self):
        """The place of the part in the mesh, as it is put behind the parameter's name."""
        if self.mesh.get_coordinate() is None:
            raise Unreadable("this rank is not in the device mesh of a parameter that it has")
        names = self.mesh.mesh_dim_names or ["mesh %d" % number for number in range(self.mesh.ndim)]
        return "[%s]" % ", ".join("%s=%d" % pair for pair in zip(names, self.mesh.get_coordinate()))

    def wrap(self, values, gradient):
        """Values of this part as a DTensor in place of the gradient."""
        kind = type(gradient)
        # The script's own sums over the mesh have no part in what is looked at.
        return kind.from_local(
            values, self.mesh, self.placements, run_check=False, shape=gradient.shape, stride=gradient.stride()
        )


def sharded_params():
    """What FSDP2 knows of each parameter that it has cut, by the identity of this rank's shard and by that of the
    gathered parameter, which takes the shard's place in its module while forward and backward use it."""
    of_type = objects.named("FSDPParam")
    tensors = ((getattr(it, name, None), it) for it in of_type for name in ("sharded_param", "_unsharded_param"))
    return {id(tensor): it for tensor, it in tensors if tensor is not None}


def gathered_params():
    """Identities of the whole parameters that FSDP2 puts in the place of its shards for a forward: what accumulates
    gradients, and what an optimizer is to hold, are the shards."""
    whole = (getattr(it, "_unsharded_param", None) for it in sharded_params().values())
    return {id(it) for it in whole if it is not None}


def part_of(param, sharded):
    """This rank's part of a parameter that tensor parallelism has cut; None for any other. `sharded` is what FSDP2
    knows of the parameter, if that has cut it as well."""
    if sharded is not None:
        return Part(sharded._tp_spec, sharded._orig_size) if getattr(sharded, "is_dtensor", False) else None
    spec = getattr(param, "_spec", None)
    return Part(spec, param.to_local().shape) if hasattr(param, "device_mesh") and spec is not None else None


def shard_number(tensor):
    """Number of this rank's shard of a DTensor of which a mesh holds each shard several times; None for others."""
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
    """The first element of FSDP2's shard in this rank's part of a parameter; None where rows are not cut."""
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
    """This rank's part of a gradient."""
    return gradient.to_local() if hasattr(gradient, "to_local") else gradient


def refuse_mixed(params):
    """Refuses a model of which tensor parallelism has cut some parameters, and others are whole on all ranks: which
    ranks average these is not known. `params` has pairs of a trainable parameter's name and true if it is cut.

    The error is `Unreadable`.
    """
    whole = [name for name, is_cut in params if not is_cut]
    if whole and len(whole) < len(params):
        raise Unreadable(
            "tensor parallelism has cut some parameters and not %s, of which it is not known over which ranks they are "
            "to be averaged" % (", ".join(whole[:4]) + (" and %d more" % (len(whole) - 4) if len(whole) > 4 else ""))
        )


def refuse_partial(name, gradient):
    """Refuses a gradient that is summed over a mesh only after autograd has delivered it.

    The error is `Unreadable`.
    """
    if any(placement.is_partial() for placement in getattr(gradient, "placements", ())):
        raise Unreadable(
            "the gradient of %s is summed over a device mesh behind autograd: use codes in place of gradients "
            "(without --observe)" % name
        )
