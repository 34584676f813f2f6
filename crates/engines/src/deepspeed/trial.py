# As DeepSpeed's ranks are started; by itself it looks for a GPU, then for a compiler.
os.environ.setdefault("DS_ACCELERATOR", "cpu")


@fact_without_torch
def deepspeed():
    """DeepSpeed's version."""
    import deepspeed

    return str(deepspeed.__version__)


@fact_without_torch
def deepspeed_fp16():
    """True if DeepSpeed supports fp16 on the accelerator of its ranks, by the check of its own engine."""
    from deepspeed.accelerator import get_accelerator

    return bool(get_accelerator().is_fp16_supported())


@fact_without_torch
def deepspeed_features():
    """Keys of the section `zero_optimization` of DeepSpeed's configuration, which refuses others, and methods of
    the engine, arguments of `initialize` and modules that not every release has."""
    import importlib.util
    import inspect

    import deepspeed
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    keys = set()
    fields = getattr(DeepSpeedZeroConfig, "model_fields", None) or DeepSpeedZeroConfig.__fields__
    for name, field in fields.items():
        keys.update((name, getattr(field, "alias", None) or name))
    methods = [name for name in ("coalesce_grad_reduction",) if hasattr(DeepSpeedEngine, name)]
    methods += [name for name in ("mesh_param",) if name in inspect.signature(deepspeed.initialize).parameters]
    package = "deepspeed.runtime.sequence_parallel"
    if importlib.util.find_spec(package) and importlib.util.find_spec(package + ".parallel_state_sp"):
        methods.append("parallel_state_sp")
    return sorted("zero_optimization." + key for key in keys) + methods
