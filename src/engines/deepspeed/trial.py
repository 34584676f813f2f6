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
