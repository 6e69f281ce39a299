"""AdaWAC with Hugging Face transformers: Segformer, which returns an object with logits of a quarter of the size.

Run it:  pip install adawac transformers
         python examples/with_transformers.py  (ten epochs; another number may follow)

The network is drawn at random; for a pretrained one, and pictures of three channels:
SegformerForSemanticSegmentation.from_pretrained("nvidia/mit-b0", num_labels=9).
"""

import sys

import torch
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader
from transformers import SegformerConfig, SegformerForSemanticSegmentation, get_cosine_schedule_with_warmup

import adawac
from adawac.data.phantom import phantom_cases

EPOCHS = int(sys.argv[1]) if sys.argv[1:] else 10


def phantom_slices(patients: int):
    """Yield image (1, H, W) and label (H, W) of each slice: put your own data here."""
    for case in phantom_cases(patients, size=64, slices=(16, 16), sparse=0.5):
        image = torch.from_numpy(case.image).clamp(-200, 300) / 250  # a window of Hounsfield units
        yield from zip(image.unbind(1), torch.from_numpy(case.label).long(), strict=True)


torch.manual_seed(1)
train_set = list(phantom_slices(8))
sparse = torch.tensor([not label.any() for _, label in train_set])
loader = DataLoader(adawac.PairDataset(train_set, seed=1), batch_size=8, shuffle=True)

sizes = {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 1, 1], "decoder_hidden_size": 64}
config = SegformerConfig(num_channels=1, num_labels=9, num_attention_heads=[1, 2, 3, 4], **sizes)
model = SegformerForSemanticSegmentation(config).train()
criterion = adawac.AdaWAC(num_samples=len(train_set), preset="robust")
tap = adawac.EncoderTap(model, "segformer")  # of the object that it returns, the deepest map
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = get_cosine_schedule_with_warmup(optimizer, len(loader), EPOCHS * len(loader))

for epoch in range(EPOCHS):
    criterion.held = epoch < EPOCHS // 4  # until the network has settled
    for batch in loader:
        labels = torch.cat(batch["labels"])
        outputs = model(pixel_values=torch.cat(batch["images"]))
        logits = interpolate(outputs.logits, labels.shape[-2:], mode="bilinear")  # as its image processor does
        step = criterion(logits, labels, tap.pop(), batch["index"])
        step.loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    beta = criterion.weights.beta
    print(f"epoch {epoch + 1:2}: β label-sparse {beta[sparse].mean():.2f}, label-dense {beta[~sparse].mean():.2f}")
