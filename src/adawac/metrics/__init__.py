"""How good a segmentation is: Dice, Hausdorff and surface distances, and what empty masks score.

Masks are boolean arrays; label maps hold class numbers. Distances are in voxels, or in millimetres with a spacing.
"""

from adawac.metrics.masks import (
    CONVENTIONS,
    ClassScore,
    Convention,
    Outcome,
    assd,
    dice,
    hd95,
    hd95_max_directed,
    score_volume,
    surface_dice,
)

__all__ = [
    "CONVENTIONS",
    "ClassScore",
    "Convention",
    "Outcome",
    "assd",
    "dice",
    "hd95",
    "hd95_max_directed",
    "score_volume",
    "surface_dice",
]
