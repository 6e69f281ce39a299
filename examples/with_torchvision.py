"""AdaWAC with torchvision: DeepLabV3, which returns a dict, with its auxiliary head.

Run it:  python examples/with_torchvision.py  (ten epochs; another number may follow)
"""

import sys

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from torchvision.models.segmentation import deeplabv3_mobilenet_v3_large

import adawac
from adawac.data.phantom import phantom_cases

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_slices(patients: int):
    """Yield image (1, H, W) and label (H, W) of each slice: put your own data here."""
    for case in phantom_cases(patients, size=32, slices=(16, 16), sparse=0.5):
        image = torch.from_numpy(case.image).clamp(-200, 300) / 250  # a window of Hounsfield units
        yield from zip(image.unbind(1), torch.from_numpy(case.label).long(), strict=True)


torch.manual_seed(1)
train_set = list(phantom_slices(8))
sparse = torch.tensor([not label.any() for _, label in train_set])
loader = DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=8, shuffle=True)

model = deeplabv3_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=9, aux_loss=True)
criterion = adawac.AdaWAC(num_samples=len(train_set), preset="robust")
tap = adawac.EncoderTap(model, "backbone")  # it returns a dict; the last entry, "out", is its deepest map
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for epoch in range(EPOCHS):
    criterion.held = epoch < EPOCHS // 4  # until the network has settled
    for batch in loader:
        images, labels = torch.cat(batch["images"]), torch.cat(batch["labels"])
        outputs = model(images.expand(-1, 3, -1, -1))  # torchvision's backbones take three channels
        step = criterion(outputs["out"], labels, tap.pop(), batch["index"])
        loss = step.loss + 0.2 * cross_entropy(outputs["aux"], labels)  # torchvision's own second loss stays
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    beta = criterion.weights.beta
    print(f"epoch {epoch + 1:2}: β label-sparse {beta[sparse].mean():.2f}, label-dense {beta[~sparse].mean():.2f}")
