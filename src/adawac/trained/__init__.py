"""Trained networks, ready to be used: `adawac.trained.load_trained("runs/adawac")`."""

from adawac.trained.loading import load_trained
from adawac.trained.network import Trained

__all__ = ["Trained", "load_trained"]
