# zprobe starts DeepSpeed's ranks with the same variable. Without the variable DeepSpeed looks for a GPU, then for a
# compiler.
os.environ.setdefault("DS_ACCELERATOR", "cpu")


@fact_without_torch
def deepspeed():
    """The version of the installed DeepSpeed."""
    import deepspeed

    return str(deepspeed.__version__)


@fact_without_torch
def deepspeed_features():
    """The keys of the section `zero_optimization` that DeepSpeed's configuration accepts, followed by the names of the
    methods of the engine, arguments of `initialize` and modules that not every release has."""
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
    if importlib.util.find_spec("deepspeed.runtime.zero.muon"):
        methods.append("muon")
    return sorted("zero_optimization." + key for key in keys) + methods
