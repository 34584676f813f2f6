# fully_shard (FSDP2): parameters in fp32, computed in another dtype.

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

COMPUTE_DTYPE = torch.bfloat16  #: compute_dtype
REDUCE_DTYPE = torch.float32  #: reduce_dtype
SETTINGS = {}  #: settings
SHARDS = WORLD_SIZE // SETTINGS["replicas"]
DIVISOR = SETTINGS["gradient_divide_factor"]
OVER_AVERAGE = 1.0 if DIVISOR is None else DIVISOR / WORLD_SIZE


class Engine:
    def __init__(self, model):
        dist.init_process_group("gloo")
        self.model = model
        shape = (WORLD_SIZE,) if SETTINGS["replicas"] == 1 else (SETTINGS["replicas"], SHARDS)
        names = ("replicate", "shard")[-len(shape):]
        self.mesh = mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        options = dict(
            mesh=mesh["shard"] if SETTINGS["all_reduce_hook"] else mesh,
            mp_policy=MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE, reduce_dtype=REDUCE_DTYPE),
            reshard_after_forward=SETTINGS["reshard_after_forward"],
        )
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        for module in [*model.blocks, model]:
            if DIVISOR is not None:
                module.set_gradient_divide_factor(DIVISOR)
            if SETTINGS["force_sum_reduction"]:
                module.set_force_sum_reduction_for_comms(True)
            if SETTINGS["all_reduce_hook"]:
                module.set_all_reduce_hook(self.average)
        if SETTINGS["assign_state_dict"]:
            state = {name: value.detach().clone() for name, value in model.state_dict().items()}
            model.load_state_dict(state, assign=True)
        self.optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])

    def average(self, reduced):
        dist.all_reduce(reduced, group=self.mesh.get_group("replicate"))
        reduced.div_(SETTINGS["replicas"])

    def describe(self):
        return "fully_shard"

    def accumulation(self, final):
        self.model.set_requires_gradient_sync(final or SETTINGS["reduce_every_microbatch"])
        if SETTINGS["all_reduce_at_boundary"]:
            self.model.set_requires_all_reduce(final)
        if not SETTINGS["reshard_after_backward"]:
            self.model.set_reshard_after_backward(final)
        return contextlib.nullcontext()

    def forward(self, *pieces):
        return self.model(*pieces)

    def backward(self, loss):
        (loss * OVER_AVERAGE / GA).backward()

    def step(self, boundary):
        if boundary:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def skipped(self):
        return False

    def parameters(self):
        """The parameters that are trained, whole, one after the other."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        return torch.cat([p.detach().full_tensor().reshape(-1).double() for p in trained])

    def fragments(self):
        """The tensors that the optimizer steps on, and which elements they hold: rows, equally many
        on all ranks but the last ones."""
        for layout, parameter in zip(LAYOUT, self.model.parameters()):
            if not layout.trainable:
                continue
            rows = layout.shape[0]
            each = -(-rows // SHARDS) * (layout.numel // rows)
            first = min(each * (dist.get_rank() % SHARDS), layout.numel)
            length = flat(parameter).numel()
            yield parameter, [(layout.start + first, 0, length)] if length else []
