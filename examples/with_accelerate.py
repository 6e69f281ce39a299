"""AdaWAC with Hugging Face Accelerate: the network is prepared, the criterion is moved and registered for checkpoints.

Run it:  pip install adawac accelerate
         accelerate launch examples/with_accelerate.py  (ten epochs; another number may follow; or with python)
"""

import sys
import tempfile

import segmentation_models_pytorch as smp
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

import adawac
from adawac.data.phantom import phantom_cases

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_slices(patients: int):
    """Yield image (1, H, W) and label (H, W) of each slice: put your own data here."""
    for case in phantom_cases(patients, size=32, slices=(16, 16), sparse=0.5):
        image = torch.from_numpy(case.image).clamp(-200, 300) / 250  # a window of Hounsfield units
        yield from zip(image.unbind(1), torch.from_numpy(case.label).long(), strict=True)


set_seed(1)
accelerator = Accelerator(gradient_accumulation_steps=2)
train_set = list(phantom_slices(8))
sparse = torch.tensor([not label.any() for _, label in train_set], device=accelerator.device)

decoder = {"encoder_depth": 3, "decoder_channels": (32, 24, 16)}
model = smp.Unet("resnet18", encoder_weights=None, in_channels=1, classes=9, **decoder)
criterion = adawac.AdaWAC(num_samples=len(train_set), preset="robust").to(accelerator.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
loader = DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=4, shuffle=True)

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
tap = adawac.EncoderTap(model, "encoder")  # it looks through Accelerate's wrappers
accelerator.register_for_checkpointing(criterion)  # β is in save_state and load_state; it is the same on all ranks

for epoch in range(EPOCHS):
    criterion.held = epoch < EPOCHS // 4  # until the network has settled
    for batch in loader:
        with accelerator.accumulate(model):
            logits = model(torch.cat(batch["images"]))
            step = criterion(logits, torch.cat(batch["labels"]), tap.pop(), batch["index"])
            accelerator.backward(step.loss)
            optimizer.step()
            optimizer.zero_grad()
    beta = criterion.weights.beta
    accelerator.print(
        f"epoch {epoch + 1:2}: β label-sparse {beta[sparse].mean():.2f}, label-dense {beta[~sparse].mean():.2f}"
    )

folder = accelerator.save_state(tempfile.mkdtemp(prefix="adawac-accelerate-"))
criterion.weights.log_odds.zero_()
accelerator.load_state(folder)
accelerator.print("β after loading is what was saved:", bool((criterion.weights.beta == beta).all()))
