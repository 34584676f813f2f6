"""A LightningModule and Lightning's Trainer, which starts one process for each device by itself.

    python lightning_module.py --devices 2 --accumulate 4

Weights: Lightning divides the loss that training_step returns by the number of microbatches, and DDP averages over
the ranks. A training_step sees only its own microbatch, so the usual mean over its tokens (--loss mean) gives a
mean of means, in which a token of a short microbatch counts more. Here the sum is divided by a constant, the number
of tokens that a microbatch has on average: every token of the step has the same weight (--loss token).
"""

import os

import lightning
import torch
from torch.utils.data import DataLoader

import common


def parse():
    parser = common.flags(__doc__)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--amp", action="store_true", help="fp32 parameters, autocast to --dtype")
    parser.add_argument("--loss", choices=["token", "mean"], default="token")
    parser.add_argument("--tie", action="store_true", help="one weight for embedding and head")
    return parser.parse_args()


class LanguageModel(lightning.LightningModule):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.model = common.Model(args.width, args.layers, args.checkpoint, args.tie)

    def forward(self, input_ids):
        return self.model(input_ids)

    def training_step(self, batch, index):
        total = common.summed_loss(self(batch["input_ids"]), batch["labels"])
        if self.args.loss == "mean":
            tokens = common.targets(batch["labels"])
        else:
            tokens = self.args.micro_batch * ((common.SHORTEST + common.LONGEST) / 2 - 1)
        loss = total / tokens
        if self.global_rank == 0:
            print(f"microbatch {index}: loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        # The default of 1e-8 is 0 in fp16.
        eps = 1e-4 if self.args.dtype == "fp16" and not self.args.amp else 1e-8
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, eps=eps)

    def train_dataloader(self):
        data = common.Sentences(4096, self.args.seed)
        return DataLoader(
            data, self.args.micro_batch, shuffle=True, collate_fn=common.collate, drop_last=True
        )


def precision(args):
    if args.dtype == "fp32":
        return "32-true"
    return args.dtype.replace("fp", "") + ("-mixed" if args.amp else "-true")


def main():
    args = parse()
    lightning.seed_everything(args.seed)
    trainer = lightning.Trainer(
        accelerator="auto" if torch.accelerator.is_available() else "cpu",
        devices=args.devices,
        num_nodes=1,
        strategy="ddp",
        precision=precision(args),
        max_steps=args.steps,
        accumulate_grad_batches=args.accumulate,
        gradient_clip_val=args.clip or None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(LanguageModel(args))
    if args.out:
        trainer.save_checkpoint(os.path.join(args.out, "model.ckpt"))


if __name__ == "__main__":
    main()
