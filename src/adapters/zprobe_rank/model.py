"""The synthetic models, as torch modules with real submodules."""

import torch
from torch import nn

from zprobe_rank.codes import Code


class Node(nn.Module):
    """Parameters and submodules of one dotted name; its logits are inner products with the data.

    `data` has one tensor for each parameter of the subtree in `named_parameters()` order, None for
    a parameter that this forward does not use. A submodule without data is not called.
    """

    def __init__(self):
        super().__init__()
        self.sizes = None

    def forward(self, *data):
        """Inner products <p, x> in fp32, one for each parameter that is used."""
        logits, at = [], 0
        for name, parameter in self.named_parameters(recurse=False):
            if data[at] is not None:
                logits.append((parameter.float() * data[at].float()).sum().reshape(1))
            at += 1
        for _, child in self.named_children():
            count = len(list(child.parameters()))
            part, at = data[at : at + count], at + count
            if any(x is not None for x in part):
                logits.append(child(*part))
        return torch.cat(logits)


class Coded(Node):
    """The coded model: its gradients are the data, whatever the parameters' values.

    Forward returns the logits, or with `output` loss and logits as a tuple or a dict.
    """

    def __init__(self, output, scale):
        super().__init__()
        self.output, self.scale = output, scale

    def forward(self, *data):
        logits = super().forward(*data)
        if self.output == "tensor":
            return logits
        loss = logits.sum() * self.scale
        return (loss, logits) if self.output == "tuple" else {"loss": loss, "logits": logits}

    def loss(self, output):
        """The loss that goes backward."""
        if self.output == "tensor":
            return output.sum() * self.scale
        return output[0] if self.output == "tuple" else output["loss"]


def dtype_name(tensor):
    return str(tensor.dtype)
