"""AdaWAC in a LightningModule; the callback `RunFolder` records where each slice's β went.

Run it:  pip install 'adawac[lightning]'
         python examples/with_lightning.py  (ten epochs; another number may follow)
"""

import sys
import tempfile

import lightning as L
import segmentation_models_pytorch as smp
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import adawac
from adawac.data.phantom import phantom_cases
from adawac.integrations.lightning import RunFolder

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_slices(patients: int):
    """Yield image (1, H, W) and label (H, W) of each slice: put your own data here."""
    for case in phantom_cases(patients, size=32, slices=(16, 16), sparse=0.5):
        image = torch.from_numpy(case.image).clamp(-200, 300) / 250  # a window of Hounsfield units
        yield from zip(image.unbind(1), torch.from_numpy(case.label).long(), strict=True)


class Segmenter(L.LightningModule):
    """A UNet that is trained with AdaWAC."""

    def __init__(self, num_samples: int):
        super().__init__()
        decoder = {"encoder_depth": 3, "decoder_channels": (32, 24, 16)}
        self.model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=9, **decoder)
        self.criterion = adawac.AdaWAC(num_samples, preset="robust")  # β is in Lightning's checkpoints
        self.tap = adawac.EncoderTap(self.model, "encoder")

    def training_step(self, batch, batch_idx):
        """Return the loss of two views of each sample."""
        logits = self.model(torch.cat(batch["images"]))
        return self.criterion(logits, torch.cat(batch["labels"]), self.tap.pop(), batch["index"]).loss

    def validation_step(self, batch, batch_idx):
        """Log a plain loss: samples of the validation have no β."""
        image, label = batch
        self.log("val_ce", cross_entropy(self.model(image), label))

    def configure_optimizers(self):
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


L.seed_everything(1)
slices = list(phantom_slices(10))
train_set, val_set = slices[:128], slices[128:]  # eight patients, and two others
out = tempfile.mkdtemp(prefix="adawac-lightning-")

trainer = L.Trainer(
    accelerator="cpu",
    max_epochs=EPOCHS,
    default_root_dir=out,
    callbacks=[RunFolder(f"{out}/run", hold_epochs=EPOCHS // 4)],
)
trainer.fit(
    Segmenter(len(train_set)),
    DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=8, shuffle=True),
    DataLoader(val_set, batch_size=16),
)

last = adawac.Run(f"{out}/run").metrics[-1]
print(f"β: label-sparse {last['beta_sparse']:.2f}, label-dense {last['beta_dense']:.2f}; val_ce {last['val_ce']:.3f}")
print(f"Look at it: adawac report {out}/run --out report.html")
