"""The phantom's abdomen: the eight labelled organs, everything around them, and one slice of it all."""

import numpy as np
import numpy.typing as npt

from adawac.data.phantom.patient import Array, Canvas, Patient, Plane, union


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


def render_slice(
    patient: Patient, columns: Array, rows: Array, z: float, pixel: float
) -> tuple[Array, npt.NDArray[np.uint8]]:
    """Return one slice without noise: intensities, and class indices wherever there is an organ.

    Args:
        patient: The patient to draw.
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
    """Let anatomy change ever more slowly far below and above, so that a scan can have any length."""
    if z < 0:
        return float(-230 * np.tanh(-z / 230))
    return float(patient.top + 80 * np.tanh((z - patient.top) / 80)) if z > patient.top else z
