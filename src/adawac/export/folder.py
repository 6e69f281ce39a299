"""A model folder: `model.json` and `weights.safetensors`, all that `adawac predict` needs on another machine."""

import json
from pathlib import Path

from adawac.files import write_text
from adawac.runs import save_checkpoint
from adawac.trained import Trained
from adawac.trained.card import CARD, WEIGHTS, card_of, seal

__all__ = ["save_model"]


def save_model(trained: Trained, folder: Path) -> None:
    """Write a network as a model folder.

    The weights come first: stopped in between, the folder has no description, or one that names other weights, and is
    refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / WEIGHTS
    save_checkpoint(weights, trained.network.state_dict(), {})
    card = seal(card_of(trained), weights)
    write_text(folder / CARD, json.dumps(card, indent=2, ensure_ascii=False) + "\n")
