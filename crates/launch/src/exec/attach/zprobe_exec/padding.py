"""Recognises padding: a target token that fills the ends of the rows of a microbatch."""

import torch

# The largest number of rows whose padding is reported.
MOST_ROWS = 64

# The number of elements that are processed at once, because a copy of all log-probabilities may not fit into memory.
AT_ONCE = 1 << 24


def of(gradient, dim):
    """The target of each element, read from the gradient of its log-probabilities; -1 for an element without a
    gradient. `None` if elements have several targets, as in a distillation, or if the ranks share the vocabulary."""
    if hasattr(gradient, "to_local"):
        return None
    words = gradient.movedim(dim, -1)
    parts = words.reshape(-1, words.shape[-1]).split(max(1, AT_ONCE // words.shape[-1]))
    if any(bool((torch.count_nonzero(part, 1) > 1).any()) for part in parts):
        return None
    targets = [torch.where(part.any(1), part.abs().argmax(1), -1) for part in parts]
    return torch.cat(targets).reshape(words.shape[:-1])


def facts(targets, samples):
    """The facts about the token that fills one end of the rows of `targets`. `None` if no token fills an end, or if the
    rows are unknown."""
    if targets.dim() < 2:
        if not samples or targets.numel() % samples:
            return None
        targets = targets.reshape(samples, -1)
    rows = targets.reshape(-1, targets.shape[-1]).cpu()
    columns = (rows >= 0).any(0).nonzero().flatten()
    if len(columns) < 2:
        return None
    rows = rows[:, columns[0] : columns[-1] + 1]
    found = [_at_start(it) for it in (rows.flip(1), rows)]
    return max((it for it in found if it is not None), key=lambda it: it["at_ends"], default=None)


def _at_start(rows):
    """The facts about the most frequent token that begins a row at least twice in succession. `None` if no row begins
    with a repeated token."""
    begins = rows[:, 0][(rows[:, 0] == rows[:, 1]) & (rows[:, 0] >= 0)]
    if not len(begins):
        return None
    token = int(begins.mode().values)
    lengths = (rows == token).int().cumprod(1).sum(1)
    is_other = (rows >= 0) & (rows != token)
    is_pair = is_other[:, 1:] & is_other[:, :-1]
    return dict(
        token=token,
        seen=int((rows == token).sum()),
        at_ends=int(lengths.sum()),
        rows=len(rows),
        lengths=lengths[lengths > 1].tolist()[:MOST_ROWS],
        pairs=int(is_pair.sum()),
        repeats=int((is_pair & (rows[:, 1:] == rows[:, :-1])).sum()),
    )
