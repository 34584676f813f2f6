"""Coded gradients, as `spec/code.rs` defines them: rows of a Walsh-Hadamard matrix with signs."""

import torch


class Code:
    """Which value every gradient of a run has in every element of the flat order."""

    def __init__(self, contributions, seed):
        self.seed, self.length = seed, 32
        while self.length < 2 * contributions:
            self.length *= 2

    def values(self, column, elements):
        """Values (+1 or -1, fp32) of gradient `column` in the flat `elements` (a range)."""
        index = torch.arange(elements.start, elements.stop, dtype=torch.int64)
        negative = _parity(column & (index % self.length))
        negative ^= _mix(self.seed ^ 0xE1E3, index) & 1
        negative ^= _mix(self.seed ^ 0xC01, torch.tensor([column])) & 1
        return (1 - 2 * negative).to(torch.float32)

    def initial(self, elements):
        """Starting values of the parameters in the flat `elements`, in units of the learning rate."""
        index = torch.arange(elements.start, elements.stop, dtype=torch.int64)
        value = _mix(self.seed ^ 0x1717, index) & 15
        return torch.where(value < 8, value - 8, value - 7).to(torch.float32)


def _parity(bits):
    for shift in (32, 16, 8, 4, 2, 1):
        bits = bits ^ _shifted(bits, shift)
    return bits & 1


def _mix(seed, index):
    """SplitMix64's finaliser; int64 arithmetic wraps as 64-bit arithmetic should."""
    z = _signed(seed) + (index + 1) * _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return z ^ _shifted(z, 31)


def _shifted(z, places):
    """Logical right shift; torch's own repeats the sign."""
    return (z >> places) & ((1 << (64 - places)) - 1)


def _signed(word):
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
