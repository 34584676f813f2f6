"""Facts about the script that gradients do not show: lines of the script, and settings of its trainers."""

import sys

import torch

from zprobe_exec import objects, places

# The largest number of script lines of each kind that are reported.
MOST_LINES = 4

# The engines by the name of their class: the package of the class, and the name of the engine.
ENGINES = {
    "DistributedDataParallel": ("torch.", "DDP"),
    "FSDPState": ("torch.", "FSDP2"),
    "FullyShardedDataParallel": ("torch.", "FSDP"),
    "DeepSpeedEngine": ("deepspeed.", "DeepSpeed"),
}


class Remarks:
    """The remarks about the script, collected until the last watched step."""

    def __init__(self):
        self.lines = {"backward": [], "step": []}
        self.reduced_early = self.clipped_by_value = None
        self.accumulation, self.engines = {}, set()
        self.strays, self.untied = 0, []
        self.late = []  # The names of parameters that DDP does not reduce, because it was constructed before.
        self.averages = False
        self.receives = False  # True if this rank gets updates by broadcast, and its own optimizers do not step.
        self.idle = []  # The class names of the optimizers that have never stepped.
        self.unread = []  # Configuration keys that no code reads.
        self.schedule = None  # Steps of a learning rate schedule in each training step.
        self._scheduled = {}  # By training step: the steps that each schedule has taken.

    def see_line(self, kind):
        """Remembers and returns the line of the user's own code that leads to this call; `None` without one."""
        line, lines = places.own_line(places.caller(1)), self.lines[kind]
        if line is not None and line not in lines and len(lines) < MOST_LINES:
            lines.append(line)
        return line

    def see_trainers(self):
        """Remembers the trainers and engines of this process, and their settings of gradient accumulation."""
        accelerate = sys.modules.get("accelerate.state")
        if accelerate is not None and accelerate.GradientState._shared_state:
            self.engines.add("accelerate")
            state = accelerate.GradientState()
            self.accumulation["accelerate"] = state.num_steps
            if getattr(state, "plugin_kwargs", {}).get("sync_each_batch"):
                self.engines.add("accelerate with sync_each_batch")
        for kind, (package, engine) in ENGINES.items():
            if any(str(type(it).__module__).startswith(package) for it in objects.named(kind)):
                self.engines.add(engine)
        for it in objects.named("DeepSpeedEngine"):
            self.accumulation["DeepSpeed"] = it.gradient_accumulation_steps()
        for it in objects.named("Trainer"):
            if hasattr(it, "accumulate_grad_batches"):
                self._see_lightning(it)
        trainers = sys.modules.get("transformers.trainer")
        for it in objects.of(trainers.Trainer) if trainers is not None else []:
            self.engines.add("transformers.Trainer")
            # Releases of transformers before 4.46 divide by the tokens of only one microbatch, but have no attribute
            # that shows it.
            accepts = getattr(it, "model_accepts_loss_kwargs", True)
            if accepts and getattr(it, "loss_is_scaled_for_ga", None) is not False:
                self.engines.add("num_items_in_batch")
            self.accumulation["transformers.Trainer"] = it.args.gradient_accumulation_steps

    def _see_lightning(self, trainer):
        self.engines.add("Lightning")
        if getattr(getattr(trainer, "lightning_module", None), "automatic_optimization", False):
            self.accumulation["Lightning"] = trainer.accumulate_grad_batches
        elif getattr(getattr(trainer, "strategy", None), "_ddp_kwargs", {}).get("static_graph"):
            self.engines.add("Lightning with a static graph")

    def see_schedules(self, step):
        """Remembers how often learning rate schedules step between two training steps; called before an optimizer takes
        the step with number `step`. accelerate's schedules are left out, because they step once for each rank."""
        if step in self._scheduled or objects.named("AcceleratedScheduler"):
            return
        schedules = [it for it in objects.named("LRScheduler") if hasattr(it, "_step_count")]
        self._scheduled[step] = {id(it): it._step_count for it in schedules}
        counts = list(self._scheduled.values())
        taken = {}
        for before, after in zip(counts, counts[1:]):
            for key in before.keys() & after.keys():
                taken.setdefault(key, set()).add(after[key] - before[key])
        # A schedule with a changing number of steps does not follow the training steps.
        self.schedule = max((min(it) for it in taken.values() if len(it) == 1), default=None)

    def see_groups(self, optimizer):
        """Remembers the keys in an optimizer's groups for which the optimizer has no default."""
        for group in optimizer.param_groups:
            self._see_keys(type(optimizer).__name__, group, {"params", *optimizer.defaults})

    def see_configurations(self):
        """Remembers the keys of DeepSpeed configurations that are no string constant of DeepSpeed's `config` and
        `constants` modules."""
        modules = [(name, it) for name, it in list(sys.modules.items()) if name.startswith("deepspeed.")]
        modules = [it for name, it in modules if name.endswith(("config", "constants"))]
        read = {it for module in modules for it in vars(module).values() if isinstance(it, str)}
        for it in objects.named("DeepSpeedEngine"):
            self._see_keys(None, it._config._param_dict, read)

    def _see_keys(self, optimizer, config, read):
        keys = sorted(it for it in config if isinstance(it, str) and it not in read)
        told = dict(optimizer=optimizer, keys=keys, read=sorted(read) if optimizer else [])
        if keys and told not in self.unread:
            self.unread.append(told)

    def see_reduction(self, tensor, params):
        """Called before the script reduces a tensor over the ranks: remembers if the tensor has the shape of a
        parameter and is no gradient and no copy of one, as a parameter or its change."""
        if not self.averages and isinstance(tensor, torch.Tensor) and tensor.dim():
            alike = [it for it in params if it.shape == tensor.shape]
            gradients = [it.grad for it in alike if it.grad is not None and it.grad.layout == torch.strided]
            # The comparison of contents is slow, and only a copy needs it.
            is_gradient = any(it.data_ptr() == tensor.data_ptr() for it in gradients)
            is_gradient = is_gradient or any(torch.equal(it, tensor) for it in gradients)
            self.averages = bool(alike) and not is_gradient

    def see_outer_optimizer(self, params, stepped):
        """Remembers signs of local SGD: an optimizer that never stepped and has copies of the parameters, or one of
        torch's model averagers."""
        own, shapes = {id(it) for it in params}, sorted(tuple(it.shape) for it in params)
        known = {id(it) for it in stepped}
        self.averages = self.averages or bool(objects.named("ModelAverager"))
        for it in objects.of(torch.optim.Optimizer):
            if id(it) not in known:
                held = [tensor for group in getattr(it, "param_groups", []) for tensor in group["params"]]
                if not own & {id(tensor) for tensor in held} and sorted(tuple(it.shape) for it in held) == shapes:
                    self.averages = True

    def fields(self):
        """The fields of the event `script-remarked`."""
        return dict(
            reduced_early=self.reduced_early,
            clipped_by_value=self.clipped_by_value,
            accumulation=self.accumulation,
            engines=sorted(self.engines),
            averages=self.averages,
            receives=self.receives,
            strays=self.strays,
            untied=self.untied,
            late=self.late,
            idle=self.idle,
            unread=self.unread,
            schedule=self.schedule,
            backward_at=self.lines["backward"],
            step_at=self.lines["step"],
        )
