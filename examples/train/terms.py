"""A training loop with DistributedDataParallel whose loss has three terms.

    torchrun --nproc-per-node 2 terms.py --accumulate 4
    python terms.py --accumulate 4          # one process, without torch.distributed

The student learns the next token, imitates a frozen teacher, and guesses the length of each sentence.

Weights: DDP averages over the ranks and the loop adds up the microbatches, so each sum is multiplied by the number of
ranks and divided by the number of targets or sentences that all ranks have in the step. The loss of a step is
    the mean cross entropy of all its targets
    + --imitate times the square of --temperature times the mean divergence from the teacher at all its targets
    + --guess times the mean squared error of the lengths of all its sentences (in units of the longest length).
Every target of the step has the same weight in the first two terms, every sentence in the third.
"""

import contextlib
import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import common


class Student(common.Model):
    """The language model with a second head, which guesses a sentence's length from the mean of its hidden states."""

    def __init__(self, width, layers):
        super().__init__(width, layers)
        self.length = nn.Linear(width, 1)

    def forward(self, input_ids, attention_mask):
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.places(places)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        mask = attention_mask.unsqueeze(-1)
        pooled = (x * mask).sum(1) / mask.sum(1)
        return self.head(x), self.length(pooled).squeeze(-1)


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--temperature", type=float, default=2.0)
    parser.add_argument("--imitate", type=float, default=0.5, help="coefficient of the teacher's term")
    parser.add_argument("--guess", type=float, default=0.3, help="coefficient of the lengths' term")
    return parser.parse_args()


def build(args, device):
    torch.manual_seed(args.seed + 1)
    teacher = common.Model(args.width, args.layers).to(device).eval().requires_grad_(False)
    torch.manual_seed(args.seed)
    model = Student(args.width, args.layers).to(device)
    wrapped = DistributedDataParallel(model) if dist.is_initialized() else model
    return teacher, model, wrapped


def divergence(logits, wanted, labels, temperature):
    """The KL divergence from the teacher's to the student's distribution, summed over the targets."""
    mask = labels[:, 1:] != common.IGNORED
    student = F.log_softmax(logits[:, :-1].float() / temperature, dim=-1)
    teacher = F.log_softmax(wanted[:, :-1].float() / temperature, dim=-1)
    each = F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)
    return (each * mask).sum()


def train(args, rank, world, local_rank):
    device = common.accelerator(local_rank)
    teacher, model, wrapped = build(args, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    data = common.Sentences(4096, args.seed)
    sampler = DistributedSampler(data, world, rank, seed=args.seed)
    loader = DataLoader(data, args.micro_batch, sampler=sampler, collate_fn=common.collate, drop_last=True)

    windows = common.windows(loader, args.accumulate)
    for step, window in zip(range(args.steps), windows):
        tokens = sum(common.targets(microbatch["labels"]) for microbatch in window).to(device)
        if world > 1:
            dist.all_reduce(tokens)
        sentences = args.micro_batch * args.accumulate * world
        totals = torch.zeros(3, device=device)
        for index, microbatch in enumerate(window):
            last = index == len(window) - 1
            quiet = not last and isinstance(wrapped, DistributedDataParallel)
            input_ids, mask, labels = (
                microbatch[key].to(device) for key in ("input_ids", "attention_mask", "labels")
            )
            with torch.no_grad():
                wanted = teacher(input_ids)
            with wrapped.no_sync() if quiet else contextlib.nullcontext():
                logits, lengths = wrapped(input_ids, mask)
                entropy = common.summed_loss(logits, labels) * world / tokens
                distance = divergence(logits, wanted, labels, args.temperature)
                distance = args.temperature**2 * distance * world / tokens
                truth = mask.sum(1) / common.LONGEST
                error = F.mse_loss(lengths, truth, reduction="sum") * world / sentences
                loss = entropy + args.imitate * distance + args.guess * error
                loss.backward()
            totals += torch.stack([entropy, distance, error]).detach()
        if args.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if world > 1:
            dist.all_reduce(totals)
        if rank == 0:
            values = " ".join(f"{value:.4f}" for value in (totals / world).tolist())
            print(f"step {step}: cross entropy, divergence, error of lengths {values}", flush=True)

    if args.out and rank == 0:
        os.makedirs(args.out, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))


def main():
    args = parse()
    if "RANK" not in os.environ:
        return train(args, rank=0, world=1, local_rank=0)
    local_rank = int(os.environ["LOCAL_RANK"])
    dist.init_process_group(dist.get_default_backend_for_device(common.accelerator(local_rank)))
    train(args, dist.get_rank(), dist.get_world_size(), local_rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
