"""AdaWAC in MONAI's SupervisedTrainer, in 2D: dictionary transforms, CacheDataset, handlers.

Run it:  pip install 'adawac[monai]'
         python examples/with_monai_2d.py  (ten epochs; another number may follow)
"""

import sys
import tempfile

import torch
from monai.data import CacheDataset, DataLoader
from monai.engines import SupervisedTrainer
from monai.networks.nets import UNet
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    RandFlipd,
    RandGaussianNoised,
    RandRotated,
    ScaleIntensityRanged,
)
from monai.utils import set_determinism

import adawac
from adawac.data.phantom import phantom_cases
from adawac.integrations.monai import EngineLoss, RunFolder, TwoViewsd

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_slices(patients: int):
    """Yield an item for each slice: put your own data here, or file names and LoadImaged."""
    for case in phantom_cases(patients, size=32, slices=(16, 16), sparse=0.5):
        for number, label in enumerate(case.label):
            yield {"image": case.image[0, number], "label": label, "case": case.id}


set_determinism(1)
items = [{**item, "index": row} for row, item in enumerate(phantom_slices(8))]  # each sample's row of β

both = ["image", "label"]
augmentation = [
    RandRotated(both, range_x=0.35, prob=1, mode=("bilinear", "nearest")),
    RandFlipd(both, prob=0.5),
    RandGaussianNoised("image", prob=0.5, std=0.05),
]
transform = Compose(
    [
        EnsureChannelFirstd(both, channel_dim="no_channel"),
        ScaleIntensityRanged("image", a_min=-200, a_max=300, b_min=0, b_max=1, clip=True),
        TwoViewsd(Compose(augmentation)),  # the random part, twice
    ]
)
loader = DataLoader(CacheDataset(items, transform, progress=False), batch_size=8, shuffle=True)

levels = {"channels": (16, 32, 64, 128), "strides": (2, 2, 2), "num_res_units": 1}
model = UNet(spatial_dims=2, in_channels=1, out_channels=9, **levels)
criterion = adawac.AdaWAC(num_samples=len(items), preset="robust")
bottleneck = "model.1.submodule.1.submodule.1.submodule"  # MONAI's UNet nests: once for each stride
loss = EngineLoss(criterion, adawac.EncoderTap(model, bottleneck))
out = tempfile.mkdtemp(prefix="adawac-monai-")

trainer = SupervisedTrainer(
    device=torch.device("cpu"),
    max_epochs=EPOCHS,
    train_data_loader=loader,
    network=model,
    optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
    loss_function=loss,
    prepare_batch=loss.prepare_batch,
    train_handlers=[
        RunFolder(f"{out}/run", criterion, samples=[item["case"] for item in items], hold_epochs=EPOCHS // 4)
    ],
)
trainer.run()

for epoch in adawac.Run(f"{out}/run").metrics:
    sparse, dense = epoch["beta_sparse"], epoch["beta_dense"]
    print(f"epoch {epoch['epoch']:2}: β label-sparse {sparse:.2f}, label-dense {dense:.2f}")
print(f"Look at it: adawac report {out}/run --out report.html")
