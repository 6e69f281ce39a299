"""Everything around the organs: trunk, skeleton, bowel, vessels and chest. None of it carries a label."""

import numpy as np

from adawac.data.abdomen.patient import Patient
from adawac.data.abdomen.shapes import Array, Canvas, Plane, union

__all__ = ["bowel", "chest", "gut", "skeleton", "trunk", "vessels"]


def trunk(canvas: Canvas, plane: Plane, patient: Patient) -> Array:
    """Paint couch, skin, fat, muscle and the cavity; return the depth in the cavity."""
    t, f, z = patient.tissue, plane.fields, plane.z
    hips = 1 / (1 + np.exp((z + 55) / 28))
    waist = np.exp(-(((z - 40) / 70) ** 2))
    chest = 1 / (1 + np.exp((190 - z) / 30))
    width = patient.width * (1 - 0.07 * waist + 0.08 * hips + 0.01 * chest)
    depth = patient.depth * (1 - 0.04 * waist - 0.02 * hips + 0.05 * chest)
    body = plane.ellipsoid((0, 0, z), (width, depth, 1), power=2.35) + 2.2 * f["coat"]
    if patient.modality == "ct":
        table = 0.0016 * plane.x**2
        couch = 3.0 - np.abs(plane.y + table - (patient.depth + 26))
        canvas.paint(np.minimum(couch, 215 - np.abs(plane.x)), t["couch"])
    canvas.paint(body, t["skin"])
    canvas.paint(body - 2.2, t["fat"] + 5 * f["rough"] + 7 * f["grain"] * (t["fat"] < 0))
    back = np.clip(plane.y / patient.depth, -1, 1)
    layer = patient.fat * (0.85 - 0.25 * back + 0.45 * hips) + 1.5 * f["rough"]
    muscle = body - layer
    canvas.paint(muscle, t["muscle"] + patient.contrast(0.05) * f["grain"])
    wall = (
        12 + 5 * np.abs(back) + 1.0 * f["lobes"] + 1.2 * f["rough"] + 16 * hips * np.clip(np.abs(plane.x) / width, 0, 1)
    )
    # Between the layers of the wall runs a thin sheet of fat, at the sides.
    sheet = np.minimum(1.0 - np.abs(muscle - 0.55 * wall), 3 * (np.abs(plane.x) / width - 0.55 + 0.2 * f["coat"]))
    canvas.paint(sheet, t["fat"] * 0.5 + t["muscle"] * 0.5)
    inner = muscle - wall
    canvas.paint(inner, t["visceral"] + patient.contrast(0.08) * f["grain"])
    strands = 0.16 - np.abs(f["tree_a"]) - 0.25 * np.abs(f["lobes"])  # vessels of the mesentery
    canvas.paint(np.minimum(strands * 12, inner - 8), t["muscle"], soft=2.0)
    return np.asarray(inner)


def skeleton(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    """Paint back muscles, spine, ribs and pelvis."""
    z, s = plane.z, patient.scale
    y0 = patient.spine(z)
    streaks = _streaked(plane, patient)
    for side in (-1, 1):
        canvas.paint(plane.column(side * 34 * s, y0 + 30, 27 * s, 19 * s, side * 0.25), streaks)
        if -150 < z < 190:
            lean = np.clip((120 - z) / 120, 0, 2.0)
            canvas.paint(
                plane.column(side * (28 + 11 * lean) * s, y0 - 8 - 6 * lean, (9 + 8 * lean) * s, (12 + 6 * lean) * s),
                streaks,
            )
        canvas.paint(plane.column(side * 66 * s, y0 + 12, 20 * s, 9 * s, side * 0.5), streaks)
    _vertebra(canvas, plane, patient, y0)
    if z > 60 * s:
        _ribs(canvas, plane, patient, inner)
    if z < 10:
        _pelvis(canvas, plane, patient, inner, y0)


def _streaked(plane: Plane, patient: Patient) -> Array:
    """Return muscle with a little fat between its fibres."""
    t = patient.tissue
    return np.asarray(t["muscle"] + 0.12 * (t["fat"] - t["muscle"]) * np.clip(plane.fields["lobes"], 0, None))


def _bone(canvas: Canvas, depth: Array, patient: Patient, plane: Plane, shell: float = 2.6) -> None:
    """Paint a bone: dense outside, spongy inside."""
    t = patient.tissue
    canvas.paint(depth, t["bone"] * (1.6 if patient.modality == "ct" else 0.8))
    canvas.paint(depth - shell, t["marrow"] + 0.14 * abs(t["marrow"]) * plane.fields["mottle"])


def _vertebra(canvas: Canvas, plane: Plane, patient: Patient, y0: float) -> None:
    t, z, s = patient.tissue, plane.z, patient.scale
    level = np.cos(2 * np.pi * (z / (33 * s) + patient.jitter[11][0]))
    wide = 1.0 if z > -30 else 1.0 + 0.012 * min(-30 - z, 60)
    body = plane.column(0, y0, 22 * s * wide * (1 + 0.04 * level), 16 * s, 0)
    behind = y0 + 24 * s
    arch = union(
        plane.column(0, behind, 17 * s, 13 * s),
        plane.chain(np.array([[0, behind, z], [0, behind + 30 * s, z]]), (5, 3.5)),
    )
    _bone(canvas, arch, patient, plane)
    if level > -0.2:
        for side in (-1, 1):
            ends = np.array([[side * 12 * s, behind - 3, z], [side * 42 * s, behind + 6, z]])
            _bone(canvas, plane.chain(ends, (4.5, 3.0)), patient, plane)
    if level > -0.78:
        _bone(canvas, body, patient, plane)
    else:
        canvas.paint(body, t["disc"])
    canvas.paint(plane.column(0, behind - 2, 10 * s, 8 * s), 0.6 * t["cord"] + 0.4 * t["fat"])
    canvas.paint(plane.column(0, behind - 2, 6.5 * s, 5.5 * s), t["cord"])


def _ribs(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    """Paint ribs: they run round the cavity and fall towards the front, so that a slice cuts each in a short piece."""
    angle = np.arctan2(plane.x, plane.y)  # 0 at the back
    fall = 64 * (1 - np.cos(angle)) / 2 * patient.scale
    phase = np.cos(2 * np.pi * ((plane.z + fall) / (30 * patient.scale) + patient.jitter[10][0]))
    along = 7.5 * (phase - 0.62)
    fade = np.clip((plane.z + 0.55 * fall - 96 * patient.scale) / 12, -1, 1) * 4
    ring = 3.8 - np.abs(inner + 5.0)
    front = np.clip((np.abs(angle) - 2.0) / 0.5, 0, 1)  # cartilage
    beside = (np.abs(plane.x) - 30 * patient.scale) * 0.5  # the spine is between them
    depth = np.minimum(np.minimum(ring, along), np.minimum(fade, beside))
    t = patient.tissue
    canvas.paint(depth, t["bone"] * 1.4 * (1 - front) + front * (t["muscle"] * 1.6))
    canvas.paint(depth - 1.8, t["marrow"] * (1 - front) + front * (t["muscle"] * 1.4))


def _pelvis(canvas: Canvas, plane: Plane, patient: Patient, inner: Array, y0: float) -> None:
    t, z, s = patient.tissue, plane.z, patient.scale
    low = np.clip(-z / 150, 0, 1.4)
    for side in (-1, 1):
        gluteal = plane.ellipsoid((side * 78 * s, y0 + 14, -130), (54 * s, 34 * s, 115), side * 0.4)
        canvas.paint(
            np.minimum(gluteal, inner + 26),
            _streaked(plane, patient),
        )
        if z > -150:
            back, front = np.array([side * 42, y0 + 14, z]), np.array([side * (112 - 14 * low), -18 + 22 * low, z])
            middle = (back + front) / 2 + np.array([side * 16, 9, 0])
            wing = plane.chain(np.stack([back, middle, front]) * (s, 1, 1), (8, 5, 7))
            _bone(canvas, np.minimum(wing, (8 - z) * 0.6), patient, plane)
        if z < -125:
            _bone(canvas, plane.ellipsoid((side * 92 * s, 18, -178), (25, 25, 34)), patient, plane, 3.0)
    bladder = plane.ellipsoid(patient.at(9, 0, -28, -158), (40 * s, 30 * s, 44 * s))
    canvas.paint(bladder, t["wall"])
    canvas.paint(bladder - 3.0, t["urine"])


def bowel(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    """Paint loops of bowel, which fill the lower abdomen and look like organs without being any."""
    f, z, s = plane.fields, plane.z, patient.scale
    bottom = np.clip((z + 165) / 40, 0, 1)
    ceiling = (118 + 12 * f["coat"]) * s - z  # below the organs
    front = 34 - plane.y + 0.25 * f["warp_x"]
    room = np.minimum(np.minimum(inner - 5, front), ceiling * 0.6) + 6 * (bottom - 1)
    clefts = (np.abs(f["tree_b"]) - 0.16) * 11  # or all loops would be one
    loops = np.minimum(np.minimum((f["loops"] + 0.3) * 9.0, clefts), room)
    gut(canvas, plane, patient, loops)
    colon = [
        plane.column(side * 96 * s + 6 * f["coat"].mean(), 12 * s + 5 * side, 19 * s + 3 * np.cos(z / 9))
        for side in (-1, 1)
    ]
    for side, depth in zip((-1, 1), colon, strict=True):
        if -70 < z < (95 if side < 0 else 120) * s:
            gut(canvas, plane, patient, np.minimum(depth + 2 * f["lobes"], inner - 2))
    if 60 * s < z < 120 * s:
        sag = 88 * s + 18 * np.cos(plane.x / 60)
        across = np.minimum(17 - np.hypot(0.8 * (z - sag), plane.y + 62 * s + 4 * f["warp_y"]), inner - 3)
        gut(canvas, plane, patient, across + 2 * f["lobes"])


def gut(canvas: Canvas, plane: Plane, patient: Patient, depth: Array) -> None:
    """Paint wall, contents and gas, which rises to the front."""
    t, f = patient.tissue, plane.fields
    canvas.paint(depth, t["bowel"])
    contents = (
        t["content"]
        + patient.contrast(0.07) * f["mottle"]
        + patient.contrast(0.4) * np.clip(f["filling"] - 0.8, 0, 1.2)
    )
    canvas.paint(depth - 3.2, contents)
    canvas.paint(
        np.minimum(depth - 4.2, 9 * (f["filling"] - 2.1 + 1.6 * patient.gas) - 0.07 * (plane.y + 20)), t["air"]
    )


def vessels(canvas: Canvas, plane: Plane, patient: Patient) -> None:
    """Paint the vessels that carry no label: vena cava, and below the aorta's end the iliac arteries and veins."""
    t, z, s = patient.tissue, plane.z, patient.scale
    y0 = patient.spine(z) - 27 * s
    if z >= -4:
        rise = np.clip((z - 120 * s) / 90, 0, 1.2)
        canvas.paint(plane.column(-17 * s - 4 * rise, y0 + 3 - 14 * rise, 12.5 * s, 9 * s, 0.2), t["vein"])
        return
    apart = np.clip(-z / 120, 0, 1) ** 0.8
    for side in (-1, 1):
        canvas.paint(
            plane.column(side * (9 + 48 * apart) * s, y0 + 2 - 16 * apart + 6 * apart**2, 6.0 * s), t["vessel"]
        )
        canvas.paint(plane.column(side * (12 + 42 * apart) * s - 4, y0 + 11 - 10 * apart, 7.5 * s, 6 * s), t["vein"])


def chest(canvas: Canvas, plane: Plane, patient: Patient, inner: Array) -> None:
    """Paint lungs above the dome of the diaphragm, which the liver and the spleen fill from below, and the heart."""
    t, f, s = patient.tissue, plane.fields, patient.scale
    if plane.z < 130 * s:
        return
    dome = 250 * s - 0.0105 * ((np.abs(plane.x) - 62 * s) ** 2 + 1.1 * (plane.y + 8) ** 2) / s
    above = (plane.z - dome) * 0.55 + 1.5 * f["rough"]
    mediastinum = np.abs(plane.x - 6) - (30 + 16 * np.clip(-plane.y / 60, -0.5, 1)) * s
    lung = np.minimum(np.minimum(above, inner - 3), mediastinum)
    canvas.label[lung > 0] = 0
    canvas.paint(lung, t["lung"] + 0.02 * abs(t["lung"]) * f["grain"])
    canvas.paint(
        np.minimum((0.12 - np.abs(f["tree_b"])) * 9, lung - 4) - 0.6 * np.abs(f["lobes"]), t["muscle"], soft=2.5
    )
    if plane.z > 205 * s:
        heart = plane.ellipsoid(patient.at(10, 22, -34, 275), (58 * s, 44 * s, 62 * s), -0.5)
        canvas.label[heart > 0] = 0
        canvas.paint(heart, t["heart"] + 0.1 * abs(t["heart"]) * f["rough"])
