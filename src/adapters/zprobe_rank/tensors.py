"""Tensors as a rank holds them."""

import torch


def flat(tensor):
    """A tensor's content on this rank, flat."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)


def dense(gradient):
    """A gradient, flat; None where there is none, or one that is no dense row of real numbers."""
    if gradient is None or gradient.layout != torch.strided or gradient.is_complex():
        return None
    return flat(gradient)
