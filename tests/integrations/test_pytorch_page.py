"""The page for a plain PyTorch loop, as its readers would run it."""

import re

import torch

import adawac
from tests.integrations.small_training import NUM_SAMPLES, network, optimizer_of, scans
from tests.places import REPOSITORY


def test_the_page_runs():
    text = (REPOSITORY / "docs" / "how-to" / "pytorch.md").read_text()
    loop, wrapped, own = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    model = network()
    names = {
        "torch": torch,
        "model": model,
        "optimizer": optimizer_of(model),
        "train_set": scans(),
        "augment": lambda image, label: (image + 0.1 * torch.randn(image.shape), label),
    }
    for loader in (wrapped, wrapped + own.replace("num_workers=4", "num_workers=0")):
        exec(loader + loop.replace('"encoder"', '"0"'), names)
        assert isinstance(names["criterion"], adawac.AdaWAC)
        assert (names["criterion"].weights.beta != 0.5).sum() == NUM_SAMPLES
