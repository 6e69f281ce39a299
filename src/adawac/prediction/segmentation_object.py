"""Label maps as DICOM SEG, on the slices of their series."""

import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import adawac
from adawac.data.sources.dicom_series import LPS_TO_RAS, load_highdicom, load_pydicom
from adawac.errors import DataError
from adawac.files import beside
from adawac.prediction.volumes import Volume

__all__ = ["write_seg"]


def write_seg(path: Path, labels: npt.NDArray[np.integer[Any]], volume: Volume, class_names: Sequence[str]) -> None:
    """Write class indices as binary segments, one for each class but the background.

    Patient, study and frame of reference are those of the series, as DICOM wants it.
    """
    hd = load_highdicom()
    sources = [load_pydicom().dcmread(one, stop_before_pixels=True) for one in volume.files]
    # highdicom's axes are (slice, row, column) in LPS; ours are (column, row, slice) in RAS.
    try:
        seg = _quietly(
            hd.seg.Segmentation,
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
            omit_empty_frames=True,
        )
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected a series that a DICOM SEG can refer to, but got: {' '.join(str(error).split())} Write NIfTI."
        ) from error
    with beside(path) as temporary:
        seg.save_as(temporary)


def _quietly(make: Callable[..., Any], **options: Any) -> Any:
    """Call highdicom without its warnings: they find fault with names of patients, and would print these."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return make(**options)


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
