# fully_shard (FSDP2): parameters in fp32, computed in another dtype.

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

COMPUTE_DTYPE = torch.bfloat16  #: compute_dtype
REDUCE_DTYPE = torch.float32  #: reduce_dtype
EVERY_MICROBATCH = False  #: every_microbatch
OPTIONS = {}  #: options


class Engine:
    def __init__(self, model):
        dist.init_process_group("gloo")
        self.model = model
        options = dict(
            mesh=init_device_mesh("cpu", (WORLD_SIZE,)),
            mp_policy=MixedPrecisionPolicy(param_dtype=COMPUTE_DTYPE, reduce_dtype=REDUCE_DTYPE),
            **OPTIONS,
        )
        for block in model.blocks:
            fully_shard(block, **options)
        fully_shard(model, **options)
        self.optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])

    def describe(self):
        return "fully_shard"

    def accumulation(self, final):
        self.model.set_requires_gradient_sync(final or EVERY_MICROBATCH)
        return contextlib.nullcontext()

    def forward(self, *pieces):
        return self.model(*pieces)

    def backward(self, loss):
        (loss / GA).backward()

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
            each = -(-rows // WORLD_SIZE) * (layout.numel // rows)
            first = min(each * dist.get_rank(), layout.numel)
            length = flat(parameter).numel()
            yield parameter, [(layout.start + first, 0, length)] if length else []
