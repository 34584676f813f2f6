"""Tensors as a rank holds them."""


def flat(tensor):
    """A tensor's content on this rank, flat."""
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor.reshape(-1)
