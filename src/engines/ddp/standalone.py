# DistributedDataParallel, with gradient accumulation as its documentation has it.

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

OPTIONS = {}  #: options
COMM_HOOK = None  #: comm_hook
DELAYED_PARAMETERS = None  #: delayed_parameters
BACKEND = None  #: compile


class Engine:
    def __init__(self, model):
        dist.init_process_group("gloo")
        self.model = model
        if DELAYED_PARAMETERS:
            trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
            OPTIONS["bucket_cap_mb"] = int(OPTIONS["bucket_cap_mb"])
            OPTIONS["delay_all_reduce_named_params"] = trained[-(len(trained) // 2) :]
            OPTIONS["param_to_hook_all_reduce"] = trained[0][1]
        self.ddp = DistributedDataParallel(model, **OPTIONS)
        if COMM_HOOK is not None:
            self.ddp.register_comm_hook(None, getattr(default_hooks, COMM_HOOK))
        self.compiled = self.ddp
        if BACKEND is not None:
            # The compiler splits the graph by the capacity of the first bucket, too.
            first = min(dist._DEFAULT_FIRST_BUCKET_BYTES, int(OPTIONS["bucket_cap_mb"] * 2**20))
            dist._DEFAULT_FIRST_BUCKET_BYTES = first
            self.compiled = torch.compile(self.ddp, backend=BACKEND)
        self.optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])

    def describe(self):
        return "DistributedDataParallel"

    def accumulation(self, final):
        return contextlib.nullcontext() if final else self.ddp.no_sync()

    def forward(self, *pieces):
        return self.compiled(*pieces)

    def backward(self, loss):
        (loss / GA).backward()
        if DELAYED_PARAMETERS == "awaited":
            dist.barrier()

    def step(self, boundary):
        if boundary:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def skipped(self):
        return False

    def parameters(self):
        """The parameters that are trained, one after the other."""
        return torch.cat([flat(p) for p in self.model.parameters() if p.requires_grad])

    def fragments(self):
        """The tensors that the optimizer steps on, and which elements they hold."""
        for layout, parameter in zip(LAYOUT, self.model.parameters()):
            if layout.trainable:
                yield parameter, [(layout.start, 0, layout.numel)]
