"""AdaWAC in a plain PyTorch loop: the criterion, a tap on the encoder, and two views of each sample.

Run it:  python examples/with_pytorch.py  (ten epochs; another number may follow)
"""

import sys
import tempfile

import segmentation_models_pytorch as smp
import torch
from torch.utils.data import DataLoader

import adawac
from adawac.data.phantom import phantom_cases

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10
HELD = EPOCHS // 4  # epochs in which all weights stay at one half, until the network has settled


def phantom_slices(patients: int):
    """Yield image (1, H, W) and label (H, W) of each slice: put your own data here."""
    for case in phantom_cases(patients, size=32, slices=(16, 16), sparse=0.5):
        image = torch.from_numpy(case.image).clamp(-200, 300) / 250  # a window of Hounsfield units
        yield from zip(image.unbind(1), torch.from_numpy(case.label).long(), strict=True)


torch.manual_seed(1)
train_set = list(phantom_slices(8))
sparse = torch.tensor([not label.any() for _, label in train_set])  # slices without any foreground
loader = DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=8, shuffle=True)

decoder = {"encoder_depth": 3, "decoder_channels": (32, 24, 16)}
model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=9, **decoder)
criterion = adawac.AdaWAC(num_samples=len(train_set), preset="robust")
tap = adawac.EncoderTap(model, "encoder")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(EPOCHS):
    criterion.held = epoch < HELD
    for batch in loader:
        logits = model(torch.cat(batch["images"]))  # view 1 of all samples, then view 2
        step = criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"])
        step.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    beta = criterion.weights.beta
    print(f"epoch {epoch + 1:2}: β label-sparse {beta[sparse].mean():.2f}, label-dense {beta[~sparse].mean():.2f}")

# β is a state of the training: save it with the network.
checkpoint = f"{tempfile.mkdtemp(prefix='adawac-pytorch-')}/checkpoint.pt"
torch.save({"model": model.state_dict(), "criterion": criterion.state_dict()}, checkpoint)
print(f"Saved: {checkpoint}")
