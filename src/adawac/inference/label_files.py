"""Label maps as files: cleaned up, as NIfTI on the scan's grid or as DICOM SEG, with a JSON file beside them."""

import gzip
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.data.cases import Array
from adawac.data.sources.dicom_series import LPS_TO_RAS, load_highdicom, load_pydicom
from adawac.errors import DataError
from adawac.files import beside, write_text
from adawac.inference.predictor import FULL
from adawac.inference.volumes import Volume

# What a DICOM SEG says of each file that it refers to, and what files of one slice are.
_REFERRED = ("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "FrameOfReferenceUID")
_CLASSES = {
    "CT": "1.2.840.10008.5.1.4.1.1.2",
    "MR": "1.2.840.10008.5.1.4.1.1.4",
    "PT": "1.2.840.10008.5.1.4.1.1.128",
}
_PATIENT = 0x0010  # the group of what DICOM knows of a patient
# What a file must have, and may leave empty.
_IDENTIFYING = ["PatientName", "PatientID", "PatientBirthDate", "PatientSex", "AccessionNumber", "StudyID"]
_IDENTIFYING += ["ReferringPhysicianName"]
_PART = 1 << 24  # voxels that are counted at a time: counting casts to 64 bits


def keep_largest_components(labels: npt.NDArray[np.integer[Any]]) -> int:
    """Keep the largest connected part of each class, in place; all other parts become background.

    Voxels are connected through their faces. Of parts of one size the first in the array's order stays. Each class is
    looked at within its bounding box, which bounds the memory.

    Returns:
        How many voxels became background.
    """
    from scipy.ndimage import find_objects, label

    removed = 0
    for index, box in enumerate(find_objects(labels), start=1):
        if box is None:  # the class does not occur
            continue
        part = labels[box]
        mask = part == index
        components, count = label(mask, output=np.int32)
        if count < 2:
            continue
        sizes = np.zeros(count + 1, dtype=np.int64)
        flat = components.reshape(-1)
        for start in range(0, flat.size, _PART):
            sizes += np.bincount(flat[start : start + _PART], minlength=count + 1)
        sizes[0] = 0
        lost = mask & (components != np.argmax(sizes))
        removed += int(np.count_nonzero(lost))
        part[lost] = 0
    return removed


def read_seg_sources(volume: Volume) -> list[Any]:
    """Return the headers of a series for `write_seg`, or raise a `DataError` that names what one of them lacks."""
    headers = [load_pydicom().dcmread(path, stop_before_pixels=True) for path in volume.files]
    for path, header in zip(volume.files, headers, strict=True):
        if not header.get("SOPClassUID"):  # some programs that remove names remove this, too
            simple = _CLASSES.get(header.get("Modality")) if int(header.get("NumberOfFrames") or 1) == 1 else None
            header.SOPClassUID = header.file_meta.get("MediaStorageSOPClassUID") or simple
        if lacking := [name for name in _REFERRED if not header.get(name)]:
            raise DataError(
                f"Expected {lacking[0]} in each file of a series that a DICOM SEG can refer to, but {path} has none. "
                "It may have been removed together with the patient's name. Write NIfTI (format nifti)."
            )
    return headers


def write_seg(
    path: Path,
    labels: npt.NDArray[np.integer[Any]],
    volume: Volume,
    sources: Sequence[Any],
    class_names: Sequence[str],
) -> None:
    """Write class indices as binary segments, one for each class but the background.

    Study, frame of reference and images that it refers to are those of the series. Who the patient is stays behind:
    what DICOM asks for is there, and empty.
    """
    hd = load_highdicom()
    # highdicom's axes are (slice, row, column) in LPS; ours are (column, row, slice) in RAS. Its warnings find fault
    # with names of patients, and would print these.
    try:
        with warnings.catch_warnings(action="ignore", category=UserWarning):
            seg = hd.seg.Segmentation(
                source_images=sources,
                pixel_array=hd.Volume(
                    np.ascontiguousarray(labels.transpose(2, 1, 0)),
                    LPS_TO_RAS @ volume.affine[:, [2, 1, 0, 3]],
                    coordinate_system="PATIENT",
                    frame_of_reference_uid=sources[0].FrameOfReferenceUID,
                ),
                segmentation_type=hd.seg.SegmentationTypeValues.BINARY,
                segment_descriptions=[_describe(index, name) for index, name in enumerate(class_names) if index],
                series_instance_uid=hd.UID(),
                series_number=int(sources[0].get("SeriesNumber") or 0) + 1000,
                sop_instance_uid=hd.UID(),
                instance_number=1,
                manufacturer="adawac",
                manufacturer_model_name="adawac",
                software_versions=adawac.__version__,
                device_serial_number="0",
                series_description="adawac",
                omit_empty_frames=bool(labels.any()),  # highdicom logs a warning where it has to keep them
            )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected a series that a DICOM SEG can refer to, but got: {' '.join(str(error).split())} Write NIfTI."
        ) from error
    for element in list(seg.group_dataset(_PATIENT)):
        del seg[element.tag]
    for name in _IDENTIFYING:
        setattr(seg, name, "")
    with beside(path) as temporary:
        seg.save_as(temporary)


def _describe(index: int, name: str) -> Any:
    hd = load_highdicom()
    from pydicom.sr.codedict import codes

    return hd.seg.SegmentDescription(
        segment_number=index,
        segment_label=name[:64],
        segmented_property_category=codes.SCT.AnatomicalStructure,
        segmented_property_type=_code(name),
        algorithm_type=hd.seg.SegmentAlgorithmTypeValues.AUTOMATIC,
        algorithm_identification=hd.AlgorithmIdentificationSequence(
            name="adawac", family=codes.cid7162.ArtificialIntelligence, version=adawac.__version__
        ),
    )


def _code(name: str) -> Any:
    """Return SNOMED's code for a class that has a plain anatomical name, or that of an anatomical structure."""
    from pydicom.sr.codedict import codes

    words = [word for word in re.findall(r"[a-z]+", name.lower()) if word not in ("left", "right")]
    try:
        return getattr(codes.SCT, "".join(word.capitalize() for word in words))
    except AttributeError:
        return codes.SCT.AnatomicalStructure


# What places a volume in space, as it stands in a header.
_GEOMETRY = ["dim_info", "xyzt_units", "qform_code", "sform_code", "quatern_b", "quatern_c", "quatern_d"]
_GEOMETRY += [f"{field}_{axis}" for field in ("qoffset", "srow") for axis in "xyz"]


def class_table(class_names: Sequence[str], values: Sequence[int]) -> list[dict[str, Any]]:
    """Return index, value in the label map, and name of each class."""
    return [{"index": k, "value": int(v), "name": n} for k, (n, v) in enumerate(zip(class_names, values, strict=True))]


def label_dtype(values: Sequence[int]) -> np.dtype[Any]:
    """Return the smallest type that NIfTI readers know and that holds these label values."""
    ranges = [np.iinfo(kind) for kind in (np.uint8, np.int16, np.int32)]
    return next(kind.dtype for kind in ranges if kind.min <= min(values) and max(values) <= kind.max)


def write_labels(path: Path, labels: Array, volume: Volume, classes: Sequence[Mapping[str, Any]]) -> None:
    """Write a label map on the scan's grid; the classes stand in an extension of the header, too."""
    header = _header(volume, labels.shape, labels.dtype, classes)
    header.set_intent("label", name="adawac")
    _write(path, header, [labels])


def write_probabilities(
    path: Path, volumes: Iterable[Array], volume: Volume, classes: Sequence[Mapping[str, Any]]
) -> None:
    """Write one volume of 16-bit shares for each class, along the fourth axis; readers get numbers from 0 to 1."""
    header = _header(volume, (*volume.shape, len(classes)), np.dtype(np.uint16), classes)
    header.set_slope_inter(1 / FULL, 0)
    header.set_intent("estimate", name="probability")
    _write(path, header, volumes)


def write_shares(path: Path, shares: Array, volume: Volume, what: str) -> None:
    """Write 16-bit shares of one volume, such as entropies; readers get numbers from 0 to 1."""
    header = _header(volume, shares.shape, np.dtype(np.uint16), [])
    header.set_slope_inter(1 / FULL, 0)
    header.set_intent("estimate", name=what)
    _write(path, header, [shares])


def write_sidecar(path: Path, data: Mapping[str, Any]) -> None:
    """Write what a label map means, and how it was made."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def _header(volume: Volume, shape: Sequence[int], dtype: "np.dtype[Any]", classes: Sequence[Mapping[str, Any]]) -> Any:
    """Return a header with the scan's geometry, bit for bit, and nothing else of it: descriptions may name people."""
    import nibabel as nib

    scan = volume.header
    header: Any = nib.Nifti1Header() if scan is None else type(scan)()
    header.set_data_dtype(dtype)
    header.set_data_shape(shape)
    if scan is None:
        header.set_xyzt_units("mm")
        header.set_sform(volume.affine, code="scanner")
        gram = volume.affine[:3, :3].T @ volume.affine[:3, :3]
        sheared = not np.allclose(gram, np.diag(np.diag(gram)), atol=1e-4)  # a tilted gantry: no quaternion says that
        header.set_qform(volume.affine, code="unknown" if sheared else "scanner")
    else:
        header["pixdim"][:4] = scan["pixdim"][:4]
        for name in _GEOMETRY:
            header[name] = scan[name]
    names = ", ".join(f"{row['value']} {row['name']}" for row in classes[1:])
    header["descrip"] = f"adawac {adawac.__version__}: {names}".encode("ascii", "replace")[:79]
    header.extensions.append(nib.nifti1.Nifti1Extension("comment", json.dumps({"classes": list(classes)}).encode()))
    return header


def _write(path: Path, header: Any, volumes: Iterable[Array]) -> None:
    """Write volumes in NIfTI's order, the first axis fastest, slice by slice; equal ones give equal bytes."""
    with (
        beside(path) as temporary,
        temporary.open("wb") as file,
        gzip.GzipFile("", "wb", compresslevel=4, fileobj=file, mtime=0) as stream,
    ):
        header.write_to(stream)
        for volume in volumes:
            for part in volume.transpose(2, 1, 0):
                stream.write(np.ascontiguousarray(part).data)
