"""PyTorch's `fully_shard` (FSDP2)."""

import torch
import torch.distributed as dist

try:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
except ImportError:
    try:
        # Its module in older releases.
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError as error:
        raise ImportError("torch %s has no FSDP2: %s" % (torch.__version__, error)) from None
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.tensor import DTensor, Shard
except ImportError:
    # Its module in older releases.
    from torch.distributed._tensor import DTensor, Shard

from zprobe_rank.channel import DTYPES
from zprobe_rank.engines.base import LoopEngine, whole
from zprobe_rank.engines.fsdp2.eyes import Eyes
from zprobe_rank.sampler import Pieces
from zprobe_rank.tensors import flat


class Engine(LoopEngine):
    """Parameters in fp32, sharded on dimension 0; computed in the run's dtype."""

    model_dtype = torch.float32

    # Before the step a rank has the gradients of its shards, like its optimizer.
    before_step_layout = "partition"

    def set_up(self):
        spec = self.spec
        self.policy = MixedPrecisionPolicy(
            param_dtype=DTYPES[spec["dtype"]], reduce_dtype=DTYPES[spec["comm_dtype"]]
        )
        self.settings = spec["fsdp2"]
        self.parts = self.settings["tensor_parallel"]
        self.shards_per_replica = spec["world_size"] // self.settings["replicas"] // self.parts
        self.mesh = self._mesh()
        if self.parts > 1:
            cut(self.model, self.mesh["tp"])
        options = dict(
            mesh=self.mesh[self._sharded_dimensions()] if self.mesh.ndim > 1 else self.mesh,
            mp_policy=self.policy,
            reshard_after_forward=self.settings["reshard_after_forward"],
        )
        self.every_microbatch = self.settings["reduce_every_microbatch"]
        # One group of parameters for each block, and one for the rest.
        blocks = getattr(self.model, "layers", self.model)
        for block in blocks.children():
            if any(True for _ in block.parameters()):
                fully_shard(block, **options)
        fully_shard(self.model, **options)
        self._choose_divisor()
        if self.settings["all_reduce_hook"]:
            self._average_in_hooks()
        if self.settings["assign_state_dict"]:
            state = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
            self.model.load_state_dict(state, assign=True)
        # The parameters that the optimizer holds, whatever the module holds while it is unsharded.
        self.optimizer = self.make_optimizer(self.trainable())
        self.owned = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def describe(self):
        facts = dict(
            policy=str(self.policy),
            implementation="%s.%s" % (fully_shard.__module__, fully_shard.__name__),
            root=type(self.model).__name__,
        )
        return fully_shard.__name__, facts

    def observe(self):
        modules = (module for module in self.model.modules() if hasattr(module, "_get_fsdp_state"))
        try:
            self.eyes = Eyes([module._get_fsdp_state() for module in modules])
            super().observe()
        except AttributeError as error:
            self.eyes = None
            self.channel.emit("not-observed", what="accumulators and the graph's ends", why=str(error))

    def gathers_for_forward(self):
        return True

    def accumulation(self, final):
        self.model.set_requires_gradient_sync(final or self.every_microbatch)
        if self.settings["all_reduce_at_boundary"]:
            self.model.set_requires_all_reduce(final)
        if not self.settings["reshard_after_backward"]:
            self.model.set_reshard_after_backward(final)
        return super().accumulation(final)

    def forward(self, *data):
        return self.model(*data)

    def backward(self, loss):
        super().backward(loss * self.over_average)

    def parameters(self):
        """Every parameter whole, or this rank's part of it, fp32, gathered from the ranks' shards."""
        return [self._part(whole(parameter.detach())) for parameter in self.model.parameters()]

    def graph_index(self):
        # Autograd accumulates into unsharded copies, which come into being with the first forward.
        shards = self.eyes.shards if self.eyes else {}
        copies = {index: getattr(shard, "_unsharded_param", None) for index, shard in shards.items()}
        return {id(copy): index for index, copy in copies.items() if copy is not None}

    def hint(self, fragment):
        """`fully_shard` cuts dimension 0 as `torch.chunk` does: all chunks but the last ones are equal."""
        for index, parameter in enumerate(self.model.parameters()):
            if parameter is fragment:
                rows = fragment.shape[0] // self.parts
                shard = dist.get_rank() // self.parts % self.shards_per_replica
                first = min(-(-rows // self.shards_per_replica) * shard, rows)
                return index, first * (fragment.numel() // fragment.shape[0]), []
        return None

    def accumulated(self, microbatch):
        """numel elements, the unsharded gradients that wait for the boundary: in the dtype that is reduced in,
        or in the run's where nothing has been added up yet. None wait where every microbatch is reduced."""
        boundary = microbatch + 1 == self.spec["gradient_accumulation_steps"]
        if self.eyes is None or boundary or self.every_microbatch:
            return None
        held, shards = self.eyes.gradients(), self.eyes.shards
        zeros = lambda shard: torch.zeros(shard._orig_size, device=shard.sharded_param.device)
        pieces = [held[number] if number in held else zeros(shards[number]) for number in sorted(shards)]
        # A custom divisor makes the local gradients larger or smaller by a power of two.
        return Pieces(pieces, lambda flat: flat / self.over_average)

    def before_step(self):
        """Gradients of this rank's shards that are not empty, fp32, in the optimizer's order."""
        return Pieces([flat(g) for g in map(gradient, self.owned) if flat(g).numel() > 0])

    def _mesh(self):
        """The ranks one after the other, or in rows that each hold the whole model, each cut for tensor
        parallelism."""
        kind = self.device().type
        sides = dict(replicate=self.settings["replicas"], shard=self.shards_per_replica, tp=self.parts)
        sides = {name: side for name, side in sides.items() if side > 1 or name == "shard"}
        if len(sides) == 1:
            return init_device_mesh(kind, (self.spec["world_size"],))
        return init_device_mesh(kind, tuple(sides.values()), mesh_dim_names=tuple(sides))

    def _sharded_dimensions(self):
        """The dimensions of the mesh that `fully_shard` is given. Replicas that a hook averages over are none to
        it."""
        has_replicas = self.settings["replicas"] > 1 and not self.settings["all_reduce_hook"]
        return ("replicate", "shard") if has_replicas else ("shard",)

    def _part(self, tensor):
        """The rows of a whole parameter that tensor parallelism gives this rank."""
        return tensor.chunk(self.parts)[dist.get_rank() % self.parts]

    def _average_in_hooks(self):
        """Averages over the replicas what `fully_shard` has reduced within each."""
        replicas = self.mesh.get_group("replicate")

        def average(reduced):
            dist.all_reduce(reduced, group=replicas)
            reduced.div_(replicas.size())

        for module in self.model.modules():
            if hasattr(module, "_get_fsdp_state"):
                module.set_all_reduce_hook(average)

    def _choose_divisor(self):
        """Sets the divisor of the sum over the ranks; the loss makes up for one that is not their number."""
        factor = self.settings["gradient_divide_factor"]
        ranks = self.spec["world_size"]
        # The ranks that hold different parts of a parameter do not average its gradients.
        self.over_average = (ranks // self.parts if factor is None else factor) / ranks
        for module in self.model.modules():
            if hasattr(module, "_get_fsdp_state"):
                if factor is not None:
                    module.set_gradient_divide_factor(factor)
                if self.settings["force_sum_reduction"]:
                    module.set_force_sum_reduction_for_comms(True)


def cut(module, mesh):
    """Makes a `DTensor` of every parameter, of which this rank has a part: consecutive rows of the whole."""
    for child in module.modules():
        for name, parameter in child.named_parameters(recurse=False):
            part = DTensor.from_local(parameter.detach(), mesh, [Shard(0)], run_check=False)
            child.register_parameter(name, torch.nn.Parameter(part, requires_grad=parameter.requires_grad))


def gradient(parameter):
    """A parameter's gradient; zeros if it has none."""
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
