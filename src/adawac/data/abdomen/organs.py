"""The eight organs that carry a label, by their class index."""

import numpy as np

from adawac.data.abdomen.patient import Patient
from adawac.data.abdomen.shapes import Array, Canvas, Plane, union
from adawac.data.abdomen.surroundings import gut

__all__ = ["aorta", "organs"]


def _aorta_centre(patient: Patient, z: float) -> tuple[float, float]:
    sway = 3.0 * np.sin(z / 60 + patient.plaque)
    return float(8 * patient.scale + sway), float(patient.spine(z) - 28 * patient.scale + 0.02 * z)


def aorta(canvas: Canvas, plane: Plane, patient: Patient) -> None:
    """Paint the aorta, on one pixel at least: so every slice from 0 to the top has a label, however coarse the grid."""
    t, s = patient.tissue, patient.scale
    if plane.z < -4:
        return
    x, y = _aorta_centre(patient, plane.z)
    radius = (9.0 + 0.014 * plane.z) * s * patient.size[0]
    depth = plane.column(x, y, radius)
    canvas.paint(depth, t["vessel"], 1)
    nearest = np.unravel_index(np.argmax(depth), depth.shape)
    canvas.label[nearest] = 1
    if patient.modality == "ct" and np.sin(plane.z / 11 + patient.plaque) > 0.8:
        spot = plane.column(x + radius * np.cos(patient.plaque), y + radius * np.sin(patient.plaque), 2.2)
        canvas.paint(spot, 2.5 * t["bone"])


def organs(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    """Paint all organs but the aorta, which lies in front of whatever else there is."""
    for paint in (_kidneys, _spleen, _liver, _stomach, _pancreas, _gallbladder):
        paint(canvas, plane, patient, inner)


def _kidneys(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, f, s = patient.tissue, plane.fields, patient.scale
    for label, side, height in ((3, 1, 102), (4, -1, 88)):
        x, y, z = patient.at(label, side * 60, 40, height, 6)
        size = s * patient.size[label]
        turn = side * 0.5
        depth = (
            plane.ellipsoid((x + side * 0.12 * (z - plane.z), y, z), (30 * size, 23 * size, 56 * size), turn)
            + 1.2 * f["rough"]
        )
        medial = plane.ellipsoid((x - side * 19 * size, y - 9 * size, z), (17 * size, 9 * size, 30 * size), turn)
        depth = np.minimum(depth, 1.5 - medial)
        canvas.paint(
            plane.ellipsoid((x, y, z), (36 * size, 28 * size, 62 * size), turn) + 3 * f["rough"], t["visceral"]
        )  # its bed of fat
        canvas.paint(depth, t["kidney"] + 0.06 * abs(t["kidney"]) * f["grain"], label)
        canvas.paint(np.minimum(depth - 7 * size, 0.45 * f["mottle"] * 6), t["kidney"] * 0.82)


def _spleen(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, f, s = patient.tissue, plane.fields, patient.scale
    centre = patient.at(7, 97, 22, 172, 7)
    size = s * patient.size[7]
    outer = plane.ellipsoid(centre, (36 * size, 54 * size, 52 * size), 0.35)
    hollow = plane.ellipsoid(centre + np.array([-34, -22, -4]) * size, (34 * size, 46 * size, 60 * size), 0.35)
    depth = np.minimum(np.minimum(outer, 2 - hollow) + 1.8 * f["rough"], inner - 3.0)
    canvas.paint(depth, t["spleen"] + 0.05 * abs(t["spleen"]) * f["grain"], 7)


def _liver(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, f, s = patient.tissue, plane.fields, patient.scale
    size = s * patient.size[5]
    right = plane.ellipsoid(patient.at(5, -78, 0, 150, 6), (74 * size, 82 * size, 92 * size), -0.2, 2.4)
    left = plane.ellipsoid(patient.at(5, -4, -46, 182, 8), (78 * size, 36 * size, 48 * size), 0.15)
    depth = union(right, left, blend=22.0) + 3.0 * f["rough"]
    kidney = plane.ellipsoid(patient.at(4, -58, 46, 80, 6), (42 * s, 36 * s, 66 * s))
    fissure = np.hypot(plane.x + 12 * s, (plane.z - 150 * s) * 0.45) - 4 + 0.4 * np.clip(plane.y + 25, -40, 40)
    depth = np.minimum(np.minimum(depth, -kidney + 2), np.minimum(inner - 3.0, fissure + 8))
    depth = np.minimum(depth, 34 * s - plane.y + np.clip(-plane.x - 40, 0, 60) * 0.8)  # the spine's side stays free
    canvas.paint(depth, t["liver"] + 0.05 * abs(t["liver"]) * f["grain"], 5)
    tree = 0.34 - np.hypot(f["tree_a"], f["tree_b"]) * (0.8 + 0.004 * np.abs(plane.x + 40))
    canvas.paint(np.minimum(tree * 14, depth - 7), t["vein"] * (1.12 if patient.modality == "ct" else 0.8))
    for x, y, z, radius in patient.lesions:
        spot = radius - np.sqrt((plane.x - x * s) ** 2 + (plane.y - y * s) ** 2 + (plane.z - z * s) ** 2) + f["lobes"]
        canvas.paint(np.minimum(spot, depth - 2), 0.55 * t["liver"] + 0.45 * t["bile"])


def _stomach(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, f, s = patient.tissue, plane.fields, patient.scale
    size = s * patient.size[8]
    way = np.array([(58, 4, 212), (66, -22, 178), (54, -46, 146), (20, -55, 122), (-14, -46, 120)], dtype=float)
    points = way * s + patient.jitter[8] * 7
    depth = plane.chain(points, [34 * size, 34 * size, 27 * size, 19 * size, 11 * size]) + 2.5 * f["rough"] + f["lobes"]
    depth = np.minimum(depth, inner - 3.0)
    canvas.paint(depth, t["wall"], 8)
    contents = (
        t["content"] + patient.contrast(0.05) * f["mottle"] + patient.contrast(0.25) * np.clip(f["filling"], 0, 1)
    )
    canvas.paint(depth - 4.5, contents)
    surface = -38 * s - 26 * (0.35 - patient.gas)  # lying on the back, gas gathers in front of a level
    canvas.paint(np.minimum(depth - 4.0, surface - plane.y), t["air"])


def _pancreas(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, f, s = patient.tissue, plane.fields, patient.scale
    size = s * patient.size[6]
    way = np.array([(-32, -4, 92), (-26, -14, 112), (0, -22, 122), (30, -12, 132), (70, 14, 146)], dtype=float)
    points = way * s + patient.jitter[6] * 5
    depth = plane.chain(points, [10 * size, 13 * size, 8.5 * size, 10 * size, 8 * size]) + 1.6 * f["lobes"] + f["rough"]
    canvas.paint(np.minimum(depth, inner - 4), t["pancreas"] + patient.contrast(0.08) * f["mottle"], 6)
    duodenum = plane.chain(
        np.array([(-46, -12, 122), (-50, 2, 98), (-30, 14, 78)]) * s + patient.jitter[6] * 5, (10, 11, 10)
    )
    gut(canvas, plane, patient, np.where(canvas.label > 0, -9.0, duodenum))


def _gallbladder(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    t, s = patient.tissue, patient.scale
    size = s * patient.size[2]
    depth = plane.ellipsoid(patient.at(2, -52, -46, 112, 5), (13 * size, 22 * size, 26 * size), 0.5)
    depth = np.minimum(depth, inner - 3.0)
    canvas.paint(depth, t["wall"], 2)
    canvas.paint(depth - 1.8, t["bile"])
