"""The model, the data and the flags that the scripts in this directory share.

A small causal language model learns to count: each sentence is a row of tokens a, a + b, a + 2b, ... modulo the
vocabulary. Sentences have 4 to 24 tokens, so microbatches have unequal numbers of targets and are padded.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

VOCABULARY = 61
SHORTEST, LONGEST = 4, 24
IGNORED = -100
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def flags(description):
    """Makes the parser for the flags of all scripts."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    parser.add_argument("--accumulate", type=int, default=1, help="microbatches per step")
    parser.add_argument("--micro-batch", type=int, default=2, help="sentences per microbatch")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--clip", type=float, default=1.0, help="maximum gradient norm; 0: no clipping")
    parser.add_argument("--checkpoint", choices=["none", "reentrant", "non-reentrant"], default="none")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--out", help="directory for the checkpoint at the end")
    return parser


def accelerator(local_rank):
    """The device of this process: the accelerator with this local rank, or else the CPU."""
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(local_rank)
    return torch.device(torch.accelerator.current_accelerator().type, local_rank)


class Sentences(Dataset):
    """Sentences of the language, which depend only on the seed."""

    def __init__(self, count, seed):
        self.count, self.seed = count, seed

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        source = random.Random(f"{self.seed}/{index}")
        start, stride = source.randrange(VOCABULARY), source.randrange(1, 6)
        length = source.randint(SHORTEST, LONGEST)
        return torch.tensor([(start + stride * place) % VOCABULARY for place in range(length)])


def collate(sentences):
    """A microbatch of sentences, padded to the longest one; the labels are not shifted yet."""
    pad = lambda value: nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=value)
    tokens, labels = pad(0), pad(IGNORED)
    return {"input_ids": tokens, "attention_mask": (labels != IGNORED).long(), "labels": labels}


def targets(labels):
    """The number of tokens to predict: all but the first token of each sentence."""
    return (labels[:, 1:] != IGNORED).sum()


def summed_loss(logits, labels):
    """The cross entropy of a microbatch, summed over its targets."""
    logits, labels = logits[:, :-1].float(), labels[:, 1:]
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def windows(loader, size):
    """Yields a list with the microbatches of each step, epoch after epoch."""
    window, epoch = [], 0
    while True:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for microbatch in loader:
            window.append(microbatch)
            if len(window) == size:
                yield window
                window = []
        epoch += 1


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        heads = lambda part: part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        query, key, value = map(heads, self.qkv(self.attention_norm(x)).chunk(3, dim=-1))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class Model(nn.Module):
    """A causal language model; padding is at the end, where no token attends to it."""

    def __init__(self, width=64, layers=2, checkpoint="none", tie=False):
        super().__init__()
        self.checkpoint = checkpoint
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tie:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            if self.checkpoint == "none":
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.checkpoint == "reentrant")
        return self.head(self.norm(x))
