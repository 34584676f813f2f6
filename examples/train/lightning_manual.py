"""A LightningModule that steps its optimizer by itself, under DDP with a static graph.

    python lightning_manual.py --devices 2

Weights: DDP averages over the ranks, and so does the mean over the equal microbatches of all ranks.
"""

import argparse

import pytorch_lightning as lightning
import torch
from pytorch_lightning.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch, index):
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.layers(batch).square().mean())
        optimizer.step()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def train_dataloader(self):
        return DataLoader(torch.randn(256, 16), 4)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    lightning.seed_everything(0)
    trainer = lightning.Trainer(
        accelerator="auto" if torch.accelerator.is_available() else "cpu",
        devices=args.devices,
        strategy=DDPStrategy(static_graph=True),
        max_steps=args.steps,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression())


if __name__ == "__main__":
    main()
