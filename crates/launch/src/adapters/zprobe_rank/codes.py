"""The values of coded gradients, as `spec/code.rs` defines them: rows of a Walsh-Hadamard matrix with signs."""

import torch


class Code:
    """The value of every gradient of a run in every element of the flat order."""

    def __init__(self, contributions, seed):
        self.seed, self.length = seed, 32
        while self.length < 2 * contributions:
            self.length *= 2

    def values(self, column, elements):
        """The values (+1 or -1, fp32) of gradient `column` in the range `elements` of the flat order."""
        return self.signed(column, elements, self.signs(elements))

    def signs(self, elements):
        """The signs (+1 or -1) of the elements of the flat order, which all gradients share."""
        return torch.cat([self._signs(piece) for piece in chunks(elements)])

    def _signs(self, elements):
        index = torch.arange(elements.start, elements.stop, dtype=torch.int64)
        return (1 - 2 * (_mix(self.seed ^ 0xE1E3, index) & 1)).to(torch.float32)

    def signed(self, column, elements, signs):
        """The values of gradient `column` in the range `elements` of the flat order, computed from the elements'
        `signs`."""
        period = self.period(column, elements.start)
        whole = len(elements) - len(elements) % self.length
        values = torch.empty(len(elements))
        torch.mul(signs[:whole].view(-1, self.length), period, out=values[:whole].view(-1, self.length))
        values[whole:] = signs[whole:] * period[: len(elements) - whole]
        return values

    def period(self, column, start):
        """The values of gradient `column` in one code length from element `start` of the flat order on, before they
        are multiplied with the signs of the elements."""
        index = torch.arange(start, start + self.length) % self.length
        negative = _parity(column & index)
        negative ^= _mix(self.seed ^ 0xC01, torch.tensor([column])) & 1
        return (1 - 2 * negative).to(torch.float32)

    def initial(self, elements):
        """The starting values of the parameters in the range `elements` of the flat order, in units of the learning
        rate."""
        return torch.cat([self._initial(piece) for piece in chunks(elements)])

    def _initial(self, elements):
        index = torch.arange(elements.start, elements.stop, dtype=torch.int64)
        value = _mix(self.seed ^ 0x1717, index) & 15
        return torch.where(value < 8, value - 8, value - 7).to(torch.float32)


def code_steps(spec):
    """The number of steps whose gradients have codes of their own, like `RunSpec::code_steps`."""
    return min(spec["steps"], spec["code_steps"] or spec["steps"])


def of_run(spec):
    """The `Code` of the run that `spec` describes."""
    return Code(code_steps(spec) * spec["world_size"] * spec["gradient_accumulation_steps"], spec["seed"])


def chunks(elements):
    """The range `elements`, cut into pieces that fit into the processor's cache, for speed in large models."""
    size = 1 << 16
    return [elements[first : first + size] for first in range(0, len(elements), size)]


def _parity(bits):
    for shift in (32, 16, 8, 4, 2, 1):
        bits = bits ^ _shifted(bits, shift)
    return bits & 1


def _mix(seed, index):
    """The finaliser of SplitMix64; int64 arithmetic wraps as 64-bit arithmetic should. The operations work in place,
    because this function takes most of the time for making a code."""
    z = (index + 1).mul_(_signed(0x9E3779B97F4A7C15)).add_(_signed(seed))
    z.bitwise_xor_(_shifted(z, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    z.bitwise_xor_(_shifted(z, 27)).mul_(_signed(0x94D049BB133111EB))
    return z.bitwise_xor_(_shifted(z, 31))


def _shifted(z, places):
    """`z` shifted right without the sign: torch's `>>` repeats the sign bit."""
    return (z >> places).bitwise_and_((1 << (64 - places)) - 1)


def _signed(word):
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word
