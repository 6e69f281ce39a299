"""An abdomen made of formulas: where each structure of a patient lies, and what one slice of it looks like.

Coordinates are millimetres: x to the image's right (the patient's left), y to the back, z towards the head, with the
origin on the body's axis at the height where the aorta divides. Everything is a formula, so a patient looks the same at
any resolution; what makes two patients differ is drawn once, in `Patient`.
"""

import numpy as np
import numpy.typing as npt

from adawac.data.abdomen.organs import aorta, organs
from adawac.data.abdomen.patient import CLASS_NAMES, GROUPS, Modality, Patient
from adawac.data.abdomen.shapes import Array, Canvas
from adawac.data.abdomen.surroundings import bowel, chest, skeleton, trunk, vessels

__all__ = ["CLASS_NAMES", "GROUPS", "Modality", "Patient", "render_slice"]


def render_slice(
    patient: Patient, columns: Array, rows: Array, z: float, pixel: float
) -> tuple[Array, npt.NDArray[np.uint8]]:
    """Return one slice without noise: intensities, and class indices wherever there is an organ.

    Args:
        patient: Whom to show.
        columns: x of each column of pixels.
        rows: y of each row.
        z: Height of the slice.
        pixel: Size of a pixel.
    """
    plane = patient.plane(columns, rows, _anatomical(z, patient), pixel)
    canvas = Canvas(plane, patient.tissue["air"])
    inner = trunk(canvas, plane, patient)
    skeleton(canvas, plane, patient, inner)
    bowel(canvas, plane, patient, inner)
    vessels(canvas, plane, patient)
    organs(canvas, plane, patient, inner)
    chest(canvas, plane, patient, inner)
    aorta(canvas, plane, patient)
    return canvas.image, canvas.label


def _anatomical(z: float, patient: Patient) -> float:
    """Let anatomy change ever more slowly far below and above, so that a scan can go on for as long as it likes."""
    if z < 0:
        return float(-230 * np.tanh(-z / 230))
    return float(patient.top + 80 * np.tanh((z - patient.top) / 80)) if z > patient.top else z
