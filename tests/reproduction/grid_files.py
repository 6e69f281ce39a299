"""A grid that a core runs in moments: two methods of the small network on a small store."""

from pathlib import Path

import yaml

SMALL = {
    "title": "A small grid",
    "convention": "adawac",
    "seeds": [1],
    "settings": {
        "epochs": 1,
        "data.image_size": [32, 32],
        "data.batch_size": 12,
        "model.name": "tests.networks.small_network:small",
        "hardware.accelerator": "cpu",
    },
    "axes": {"method": ["baseline", "adawac"]},
    "columns": {"DSC": {"metric": "dice"}, "HD95": {"metric": "hd95"}, "Liver": {"metric": "dice", "class": "liver"}},
    "paper": {"baseline": ["70.5 ± 1.5", 20, 90], "adawac": ["80 ± 1", 10, None]},
}


def write_grid(path: Path, **changes) -> Path:
    """Write the small grid, with some of its entries replaced."""
    path.write_text(yaml.safe_dump({**SMALL, **changes}, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return path
