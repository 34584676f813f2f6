# DeepSpeed, as a user calls it.

# CPU ranks with gloo; to be said before the import.
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed

CONFIG = {}  #: config
OVERRIDE_LOSS_SCALE = None  #: override_loss_scale


class Engine:
    def __init__(self, model):
        # DeepSpeed compiles a shared-memory collective for CPU ranks, which takes minutes.
        module = sys.modules.get("deepspeed.comm.torch")
        if hasattr(module, "build_shm_op"):
            module.build_shm_op = lambda: None
        os.environ.setdefault("LOCAL_SIZE", os.environ["LOCAL_WORLD_SIZE"])
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
        self.model = model
        # Before DeepSpeed partitions them.
        self.known = list(zip(model.parameters(), LAYOUT))
        self.optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
        self.engine, self.wrapper, _, _ = deepspeed.initialize(
            model=model, optimizer=self.optimizer, config=CONFIG
        )
        if OVERRIDE_LOSS_SCALE is not None:
            self.wrapper.override_loss_scale(OVERRIDE_LOSS_SCALE)

    def describe(self):
        return "DeepSpeed %s, %s" % (deepspeed.__version__, type(self.wrapper).__name__)

    def accumulation(self, final):
        if len(PARTS) > 1:
            self.engine.set_gradient_accumulation_boundary(final)
        return contextlib.nullcontext()

    def forward(self, *pieces):
        return self.engine(*pieces)

    def backward(self, loss):
        self.engine.backward(loss)

    def step(self, boundary):
        self.engine.step()

    def skipped(self):
        return not self.engine.was_step_applied()

    def parameters(self):
        """The parameters that are trained, whole, one after the other."""
        parameters = list(self.model.parameters())
        with deepspeed.zero.GatheredParameters(parameters, enabled=STAGE == 3):
            return torch.cat([flat(p) for p in parameters if p.requires_grad])

    def fragments(self):
        """The tensors that the inner optimizer steps on, and which elements they hold."""
        place = {id(p): layout for p, layout in self.known}
        wrapper, rank = self.wrapper, dist.get_rank()
        if hasattr(wrapper, "fp32_partitioned_groups_flat"):
            # Stage 3: of each parameter a part for each rank, and these one after the other.
            for group, tensor in zip(wrapper.fp16_groups, wrapper.fp32_partitioned_groups_flat):
                pieces, at = [], 0
                for parameter in group:
                    size = parameter.partition_numel()
                    part = spread([place[id(parameter)]], rank * size, (rank + 1) * size)
                    pieces += [(start, at + offset, length) for start, offset, length in part]
                    at += size
                yield tensor, pieces
            return
        tensors = [tensor for group in self.optimizer.param_groups for tensor in group["params"]]
        groups = next(
            (getattr(wrapper, name) for name in ("bf16_groups", "round_robin_bit16_groups") if hasattr(wrapper, name)),
            None,
        )
        if groups is not None and len(groups) == len(tensors):
            # Stages 1 and 2: the parameters of a group one after the other, cut into equal parts.
            for group, tensor in zip(groups, tensors):
                size = tensor.numel()
                yield tensor, spread([place[id(p)] for p in group], rank * size, (rank + 1) * size)
            return
        trained = [layout for layout in LAYOUT if layout.trainable]
        for layout, tensor in zip(trained, tensors):
            yield tensor, [(layout.start, 0, layout.numel)]
