"""The page on networks: the taps of Segformer and DeepLabV3+ are as it says."""

import re

import pytest
import torch

import adawac
from tests.places import REPOSITORY

PAGE = (REPOSITORY / "docs" / "how-to" / "choose-a-network.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Other than a UNet")[2].partition("\n## ")[0]


ROWS = re.findall(r"^\| (?!network)(.*?) ?\| `(.+?)`.*? \| (\d+×\d+×\d+) \|", SECTION, re.MULTILINE)


@pytest.mark.parametrize("row", ROWS)
def test_taps_have_the_shape_that_the_page_says(row):
    name, tap, shape = row
    name = name.strip("` ") or "smp:DeepLabV3Plus/resnet18"
    network, _ = adawac.models.build(name, 3, 3, 64, tap=tap)
    latents = adawac.EncoderTap(network, tap)
    network(torch.rand(2, 3, 64, 64))
    assert "×".join(map(str, latents.pop().shape[1:])) == shape
