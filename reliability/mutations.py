"""How a valid file becomes a hostile one: bytes changed anywhere, and edits that keep to the file's format.

Every mutation follows from a `random.Random`, so that an input can be made again. What is changed within an archive, a
compressed file or a checkpoint with a digest is sealed again: a reader that trusts its seals must survive that, too.
"""

import gzip
import hashlib
import io
import json
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

TRAP = "executed"
"""The folder that a pickle makes which is put into files."""
MOST = 1 << 16
"""Bytes that a mutated file has at most."""

_NUMBERS = (
    -(2**63), -(2**31), -(2**15), -1000, -2, -1, 0, 1, 2, 3, 7, 127, 128, 255, 256, 1000, 2**15 - 1, 2**15, 2**16,
    2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**64, 10**30,
)  # fmt: skip
_FLOATS = (0.0, -0.0, 1e-300, 1e-9, 0.5, -1.0, 1e9, 1e38, 1e300, float("inf"), float("-inf"), float("nan"))
_WORDS = (
    "", " ", "\n", "\0", "nan", "inf", "-1", "1e999", "null", "true", "../../outside", "/etc/passwd", "a/b", "x" * 300,
    "é", "\udcff", "\u202e", "'", '"', "{}", "[]", "0x10", "99999999999999999999", "1_000", "٣", "²", "%s", "{0}", "|O",
    "<f4", "<c16", "<U9", "<M8[s]", "background", "image", "label", "adawac", "tests.networks.small_network:small",
    "os:system",
)  # fmt: skip
_YAML = (
    "!!python/object/apply:os.mkdir [executed]", "!!python/name:os.system", "!!binary aGk=", "!!timestamp 2001-01-01",
    "!!set {a, b}", "!!omap [a: 1]", "!!float nan", "!!int ''", "!!timestamp a", "!!bool a",
    "&a [*a]", "*a", "? {a: 1}", "<<: {a: 1}", "<<: [1]", "- - - -", "---\n", "...\n", "%YAML 3.0\n", "\t", "{[1]: 2}",
    "{{a: 1}: 2}", "[" * 3000,
    "{a: " * 1500, "0o777", "1:30:00", "2001-99-99",
    "{a: &a [1,1,1,1,1,1,1,1,1], b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b],"
    " d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d], f: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e],"
    " g: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f], h: &h [*g,*g,*g,*g,*g,*g,*g,*g,*g], i: [*h,*h,*h,*h,*h,*h,*h,*h,*h]}",
)  # fmt: skip
_DIGEST = re.compile(rb'\\"sha256\\": \\"([0-9a-f]{64})\\"')


class Trap:
    """Unpickling this makes a folder."""

    def __reduce__(self) -> Any:
        import os

        return os.mkdir, (TRAP,)


def mutate(random: Random, name: str, content: bytes) -> bytes:
    """Return a hostile form of a file; `name` says of which format it is."""
    edit = next((edit for ending, edit in _EDITS.items() if name.endswith(ending)), None)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        if edit is not None and random.random() < 0.7:
            try:
                content = edit(random, content)
            except Exception:  # it is of its format no longer
                content = change_bytes(random, content)
        else:
            content = change_bytes(random, content)
    return content[:MOST]


def change_bytes(random: Random, content: bytes) -> bytes:
    """Change bytes of any file: flips, numbers, cuts, repetitions and words."""
    data = bytearray(content)
    start, length = random.randrange(len(data) + 1), random.choice((1, 2, 4, 8, 16, 64, 512))
    kind = random.randrange(8)
    if kind == 0 and data:
        for _ in range(random.choice((1, 1, 2, 8))):
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    elif kind == 1:
        data[start : start + length] = random.randbytes(length)
    elif kind == 2:
        form = random.choice(("<b", "<h", ">h", "<i", ">i", "<q", ">q", "<f", ">f", "<d"))
        data[start : start + struct.calcsize(form)] = _packed(random, form)
    elif kind == 3:
        del data[start:]
    elif kind == 4:
        del data[start : start + length]
    elif kind == 5:
        end = random.randrange(len(data) + 1)
        data[end:end] = data[start : start + length]
    elif kind == 6:
        data[start:start] = random.choice(_WORDS).encode("utf-8", "surrogateescape")
    else:
        data[start : start + length] = bytes([random.choice((0, 255))]) * length
    return bytes(data)


def _packed(random: Random, form: str) -> bytes:
    if form[-1] in "fd":
        value = random.choice(_FLOATS)
        return struct.pack(form, value if form[-1] == "d" or not 1e38 < abs(value) < float("inf") else 1e38)
    size = 8 * struct.calcsize(form)
    return (random.choice(_NUMBERS) % (1 << size)).to_bytes(size // 8, "little" if form[0] == "<" else "big")


# -- text --------------------------------------------------------------------------------------------------------------


def change_value(random: Random, value: Any) -> Any:
    """Return plain data with something in it replaced, left out, repeated or renamed."""
    if isinstance(value, dict) and value and random.random() < 0.85:
        key = random.choice(list(value))
        kind = random.randrange(8)
        if kind == 0:
            return {other: item for other, item in value.items() if other != key}
        if kind == 1:
            return {random.choice(_WORDS) if other == key else other: item for other, item in value.items()}
        if kind == 2:
            return {**value, random.choice(_WORDS): _odd(random)}
        return {**value, key: change_value(random, value[key])}
    if isinstance(value, list) and value and random.random() < 0.85:
        row = random.randrange(len(value))
        kind = random.randrange(8)
        if kind == 0:
            return value[:row] + value[row + 1 :]
        if kind == 1:
            return value[: row + 1] + value[row:]
        if kind == 2:
            return [*value[:row], _odd(random), *value[row:]]
        return [*value[:row], change_value(random, value[row]), *value[row + 1 :]]
    return _odd(random)


def _odd(random: Random) -> Any:
    kind = random.randrange(8)
    if kind < 2:
        return random.choice(_NUMBERS)
    if kind < 4:
        return random.choice(_WORDS)
    if kind == 4:
        return random.choice(_FLOATS)
    return random.choice((None, True, False, [], {}, [[]], [1, "a"], {"a": {"b": []}}, [None] * 50))


def _json(random: Random, content: bytes) -> bytes:
    if random.random() < 0.03:
        return b"[" * random.choice((900, 5000, 60000)) if random.random() < 0.5 else b'{"a":' * 5000
    return json.dumps(change_value(random, json.loads(content))).encode("utf-8", "surrogatepass")


def _json_lines(random: Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    row = random.randrange(len(lines))
    lines[row] = _json(random, lines[row]) + b"\n" * (random.random() < 0.9)
    return b"".join(lines)


def _yaml(random: Random, content: bytes) -> bytes:
    import yaml

    if random.random() < 0.5:
        text = yaml.safe_dump(change_value(random, yaml.safe_load(content)), sort_keys=False, allow_unicode=True)
        return text.encode("utf-8", "surrogateescape")
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    row = random.randrange(len(lines))
    name, colon, _ = lines[row].partition(":")
    word = random.choice((*_YAML, *_WORDS, *map(str, _NUMBERS)))
    kind = random.randrange(4)
    lines[row] = (f"{name}{colon} {word}", word, f"{lines[row]}\n{lines[row]}", f"  {lines[row]}")[kind]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def _csv(random: Random, content: bytes) -> bytes:
    lines = content.split(b"\n")
    row = random.randrange(len(lines)) if random.random() < 0.8 else 0
    cells = lines[row].split(b",")
    column = random.randrange(len(cells))
    odd = str(_odd(random)).encode("utf-8", "surrogateescape")
    kind = random.randrange(6)
    if kind == 0:
        del cells[column]
    elif kind == 1:
        cells.insert(column, odd)
    elif kind == 2:
        lines.insert(row, lines[row])
    else:
        cells[column] = odd
    lines[row] = b",".join(cells)
    return b"\n".join(lines)


# -- numbers -----------------------------------------------------------------------------------------------------------


def _npy(random: Random, content: bytes) -> bytes:
    """Change the header of an array: its text says type, order and shape."""
    if random.random() < 0.1:
        return (
            content[:6]
            + b"\x01\x00v\x00"
            + b"{'descr': '|O', 'fortran_order': False, 'shape': (), }"
            + pickle.dumps(Trap())
        )
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length].decode("latin-1")
    kind = random.randrange(3)
    if kind == 0:
        sides = [str(random.choice(_NUMBERS[6:])) for _ in range(random.randrange(5))]
        header = re.sub(r"'shape': \([^)]*\)", f"'shape': ({''.join(side + ', ' for side in sides)})", header)
    elif kind == 1:
        header = re.sub(
            r"'descr': '[^']*'",
            f"'descr': '{random.choice(('|O', '<c16', '<M8[s]', '|V9', '<U9', '>f2', '|b1', '<f8', '<i2', '|S3'))}'",
            header,
        )
    else:
        header = change_bytes(random, header.encode("latin-1")).decode("latin-1")
    written = header.rstrip().encode("latin-1") + b"\n"
    return content[:8] + len(written).to_bytes(2, "little") + written + content[10 + length :]


def _zip(random: Random, content: bytes) -> bytes:
    """Change a file in an archive, or the archive's list of files."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = random.choice(list(members))
    renamed = (
        random.choice(("../../outside", "/outside", "", "a\\b", chosen.upper())) if random.random() < 0.1 else chosen
    )
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", random.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, member in members.items():
            if name == chosen:
                if random.random() < 0.05:
                    continue
                if name.endswith(".pkl") and random.random() < 0.2:
                    member = pickle.dumps(Trap(), protocol=2)
                else:
                    member = mutate(random, name, member)
            archive.writestr(renamed if name == chosen else name, member)
    return data.getvalue()


def _gzip(random: Random, content: bytes) -> bytes:
    return gzip.compress(mutate(random, "scan.nii", gzip.decompress(content)), compresslevel=1, mtime=0)


def _nifti(random: Random, content: bytes) -> bytes:
    """Write another number into a field of the header."""
    from nibabel.nifti1 import header_dtype

    fields = list(header_dtype.fields or {})
    likely = ("dim", "datatype", "bitpix", "vox_offset", "scl_slope", "scl_inter", "pixdim", "srow_x", "intent_code")
    kind, offset = (header_dtype.fields or {})[random.choice(likely if random.random() < 0.7 else fields)][:2]
    base = kind.base
    offset += base.itemsize * random.randrange(max(1, kind.itemsize // base.itemsize))
    forms = {"i": {1: "<b", 2: "<h", 4: "<i", 8: "<q"}, "u": {1: "<b", 2: "<h"}, "f": {4: "<f", 8: "<d"}}
    form = forms.get(base.kind, {}).get(base.itemsize, "<b")
    if random.random() < 0.3 and form == "<h":  # datatype codes and small dimensions
        packed = struct.pack("<h", random.choice((1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024, 1536, 1792, 2304)))
    else:
        packed = _packed(random, form)
    return content[:offset] + packed + content[offset + len(packed) :]


def _safetensors(random: Random, content: bytes) -> bytes:
    """Change the header, or the state in it, and put the right digest into it again."""
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    inner = header.get("__metadata__", {}).get("adawac")
    if inner is not None and random.random() < 0.3:
        header["__metadata__"]["adawac"] = json.dumps(change_value(random, json.loads(inner)))
    else:
        header = change_value(random, header)
    text = json.dumps(header).encode("utf-8", "surrogatepass")
    if random.random() < 0.1:
        return random.choice((2**40, 2**63, 10**8, len(text) - 1)).to_bytes(8, "little") + text + body
    return sealed(len(text).to_bytes(8, "little") + text + body)


def sealed(content: bytes) -> bytes:
    """Return a checkpoint with the SHA-256 of what it holds now."""
    length = int.from_bytes(content[:8], "little")
    header = content[8 : 8 + length]
    match = _DIGEST.search(header)
    if match is None:
        return content
    blank = header[: match.start(1)] + b"0" * 64 + header[match.end(1) :]
    digest = hashlib.sha256(len(header).to_bytes(8, "little") + blank + content[8 + length :]).hexdigest().encode()
    return content[: 8 + match.start(1)] + digest + content[8 + match.end(1) :]


def _model_card(random: Random, content: bytes) -> bytes:
    card = change_value(random, json.loads(content))
    if not isinstance(card, dict):
        return json.dumps(card).encode()
    card.pop("description_sha256", None)
    digest = hashlib.sha256(json.dumps(card, sort_keys=True).encode("ascii")).hexdigest()
    return json.dumps({**card, "description_sha256": digest}).encode()


def _hdf5(random: Random, content: bytes) -> bytes:
    """Write an array of another type, shape or storage, most of which promise more than the file holds."""
    import h5py
    import numpy as np

    data = io.BytesIO(content)
    with h5py.File(data, "r+") as file:
        name = random.choice([*file, "image", "label"])
        kept = file[name][()] if name in file else np.zeros((2, 2))
        file.pop(name, None)
        kind = random.randrange(6)
        if kind == 0:
            file[name] = random.choice(
                (h5py.SoftLink("/nowhere"), h5py.ExternalLink("/etc/passwd", "/"), h5py.SoftLink(f"/{name}"))
            )
        elif kind == 1:
            file.create_group(name)
        elif kind == 2:
            sides = tuple(random.choice((0, 1, 2, 3, 1000, 2**20, 2**40)) for _ in range(random.randrange(1, 5)))
            chunks = tuple(min(side, 4) or 1 for side in sides)
            file.create_dataset(
                name, sides, dtype=random.choice(("f4", "u1", "f8", "c8")), chunks=chunks, maxshape=(None,) * len(sides)
            )
        elif kind == 3:
            odd = random.choice(
                (
                    h5py.string_dtype(),
                    "S5",
                    "c8",
                    np.dtype([("a", "f4")]),
                    h5py.vlen_dtype("i4"),
                    h5py.ref_dtype,
                    "f2",
                    "i8",
                    "?",
                )
            )
            file.create_dataset(name, (3, 3, 2), dtype=odd)
        elif kind == 4:
            file[name] = random.choice((np.float32(3), "text", h5py.Empty("f4"), np.full((3, 3, 2), np.nan)))
        else:
            file.create_dataset(name, data=kept, chunks=True, compression=random.choice(("gzip", "lzf")), shuffle=True)
    return data.getvalue()


def _dicom(random: Random, content: bytes) -> bytes:
    """Give an element of a DICOM file another value, or take it out."""
    import pydicom

    dataset = pydicom.dcmread(io.BytesIO(content))
    holder: Any = dataset
    element = random.choice(list(holder))
    while element.VR == "SQ" and element.value and random.random() < 0.8:
        holder = random.choice(list(element.value))
        element = random.choice(list(holder))
    odd = _odd(random)
    if random.random() < 0.15:
        del holder[element.tag]
    elif element.VR in ("US", "SS", "UL", "SL"):
        element.value = random.choice((0, 1, 2, 7, 8, 16, 31, 32, 64, 255, 32767, 65535))
    elif element.VR in ("OW", "OB"):
        element.value = change_bytes(random, element.value)
    elif element.VR in ("DS", "IS") and random.random() < 0.7:
        words = ("0", "-1", "1e9", "1e308", "0.0001", "2147483647", "1", "3")
        count = element.VM if random.random() < 0.7 else random.randrange(8)
        holder[element.tag]._value = (
            [random.choice(words) for _ in range(count)] if count != 1 else random.choice(words)
        )
    else:
        element._value = str(odd) if element.VR != "SQ" else pydicom.Sequence([])
    data = io.BytesIO()
    dataset.save_as(data)
    return data.getvalue()


def _png(random: Random, content: bytes) -> bytes:
    """Change, move or repeat a chunk, and put the right checksums into it again."""
    chunks, position = [], 8
    while position + 12 <= len(content):
        length = int.from_bytes(content[position : position + 4], "big")
        chunks.append((content[position + 4 : position + 8], content[position + 8 : position + 8 + length]))
        position += length + 12
    row = random.randrange(len(chunks))
    name, data = chunks[row]
    kind = random.randrange(6)
    if kind == 0:
        chunks.insert(random.randrange(len(chunks)), (random.choice((b"eXIf", b"PLTE", b"tRNS", b"acTL", name)), data))
    elif kind == 1 and len(chunks) > 1:
        del chunks[row]
    elif kind == 2 and name == b"IDAT":
        chunks[row] = (name, zlib.compress(change_bytes(random, zlib.decompress(data))))
    elif kind == 3:
        head = bytearray(chunks[0][1])
        start = random.choice((0, 4))
        head[start : start + 4] = random.choice((0, 1, 7, 1000, 10**6, 2**31 - 1)).to_bytes(4, "big")
        chunks[0] = (b"IHDR", bytes(head))
    elif kind == 4:
        head = bytearray(chunks[0][1])
        head[random.randrange(8, len(head))] = random.choice((0, 1, 2, 3, 4, 6, 8, 16, 32))
        chunks[0] = (b"IHDR", bytes(head))
    else:
        chunks[row] = (name, change_bytes(random, data))
    return content[:8] + b"".join(
        len(data).to_bytes(4, "big") + name + data + zlib.crc32(name + data).to_bytes(4, "big") for name, data in chunks
    )


def _tiff(random: Random, content: bytes) -> bytes:
    """Write another type, count or value into a tag."""
    order: Any = "little" if content[:2] == b"II" else "big"
    big = int.from_bytes(content[2:4], order) == 43
    word, entry, first = (8, 20, 8) if big else (4, 12, 4)
    start = int.from_bytes(content[first : first + word], order)
    count = int.from_bytes(content[start : start + (8 if big else 2)], order)
    at = start + (8 if big else 2) + entry * random.randrange(max(1, min(count, 40)))
    data = bytearray(content)
    field = random.choice(((0, 2), (2, 2), (4, word), (4 + word, word), (4 + word, 2)))
    value = random.choice((*_NUMBERS, 254, 256, 257, 258, 259, 262, 273, 274, 277, 278, 279, 317, 320, 322, 330, 339))
    data[at + field[0] : at + sum(field)] = (value % (1 << 8 * field[1])).to_bytes(field[1], order)
    return bytes(data)


_EDITS: dict[str, Callable[[Random, bytes], bytes]] = {
    "model.json": _model_card,
    ".json": _json,
    ".jsonl": _json_lines,
    ".yaml": _yaml,
    ".csv": _csv,
    ".txt": _csv,
    ".npy": _npy,
    "history.bin": _npy,
    ".npz": _zip,
    ".pth": _zip,
    ".nii": _nifti,
    ".nii.gz": _gzip,
    ".safetensors": _safetensors,
    ".h5": _hdf5,
    ".dcm": _dicom,
    ".png": _png,
    ".tif": _tiff,
}
