"""AdaWAC with MONAI in 3D, in a loop of one's own: a sample is a block of eight slices.

Run it:  pip install 'adawac[monai]'
         python examples/with_monai_3d.py  (ten epochs; another number may follow)
"""

import sys

import torch
from monai.data import CacheDataset, DataLoader
from monai.networks.nets import UNet
from monai.transforms import Compose, RandAffined, RandFlipd, RandGaussianNoised, ScaleIntensityRanged
from monai.utils import set_determinism

import adawac
from adawac.data.phantom import phantom_cases
from adawac.integrations.monai import TwoViewsd

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_blocks(patients: int):
    """Yield blocks of eight slices, (1, 8, H, W): put your own data here."""
    for case in phantom_cases(patients, size=32, slices=(32, 32), sparse=0.5):
        for start in range(0, 32, 8):
            block = slice(start, start + 8)
            yield {"image": torch.from_numpy(case.image[:, block]), "label": torch.from_numpy(case.label[None, block])}


set_determinism(1)
items = [{**item, "index": row} for row, item in enumerate(phantom_blocks(12))]  # each sample's row of β
sparse = torch.tensor([not item["label"].any() for item in items])  # blocks without any foreground

both = ["image", "label"]
augmentation = [
    RandAffined(both, prob=1, rotate_range=(0.35, 0, 0), mode=("bilinear", "nearest"), padding_mode="zeros"),
    RandFlipd(both, prob=0.5, spatial_axis=1),
    RandGaussianNoised("image", prob=0.5, std=0.05),
]
scale = ScaleIntensityRanged("image", a_min=-200, a_max=300, b_min=0, b_max=1, clip=True)
transform = Compose([scale, TwoViewsd(Compose(augmentation))])  # the random part, twice
loader = DataLoader(CacheDataset(items, transform, progress=False), batch_size=4, shuffle=True)

levels = {"channels": (16, 32, 64), "strides": (2, 2), "num_res_units": 1}
model = UNet(spatial_dims=3, in_channels=1, out_channels=9, **levels)
criterion = adawac.AdaWAC(num_samples=len(items), preset="robust")
tap = adawac.EncoderTap(model, "model.1.submodule.1.submodule")  # nested once for each stride
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

for epoch in range(EPOCHS):
    criterion.held = epoch < EPOCHS // 4  # until the network has settled
    for batch in loader:
        logits = model(torch.cat(batch["images"]))
        step = criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"])
        step.loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    beta = criterion.weights.beta
    print(f"epoch {epoch + 1:2}: β of empty blocks {beta[sparse].mean():.2f}, of others {beta[~sparse].mean():.2f}")
