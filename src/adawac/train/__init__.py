"""Training: `adawac.fit` runs a configuration and leaves a run folder."""

from adawac.train.engine import fit

__all__ = ["fit"]
