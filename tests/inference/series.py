"""DICOM series for the tests, uncompressed or compressed."""

import numpy as np
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, MRImageStorage, RLELossless, generate_uid

SECRET = "DOE^JANE"


def write_series(
    folder,
    stored,
    directions=None,
    spacing=(0.7, 0.9, 2.5),
    *,
    origin=(-31.5, 12.0, 40.0),
    slope=1.0,
    intercept=0.0,
    names=None,
    modality="CT",
    uid=None,
    rle=False,
    backwards=False,
    tilt=0.0,
    patient=SECRET,
):
    """Write (column, row, slice) as one file per slice; the columns of `directions` are x, y, z in LPS."""
    directions = np.eye(3) if directions is None else directions
    folder.mkdir(parents=True, exist_ok=True)
    series, study, frame = uid or generate_uid(), generate_uid(), generate_uid()
    kind = CTImageStorage if modality == "CT" else MRImageStorage
    count = stored.shape[2]
    names = names or [f"{count - k if backwards else k:04d}.dcm" for k in range(count)]
    paths = []
    for k in range(count):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = kind, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        path = folder / names[k]
        ds = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
        ds.SOPClassUID, ds.SOPInstanceUID = kind, meta.MediaStorageSOPInstanceUID
        ds.PatientName, ds.PatientID, ds.PatientBirthDate, ds.PatientSex = patient, patient, "19500101", "F"
        ds.StudyInstanceUID, ds.SeriesInstanceUID, ds.FrameOfReferenceUID = study, series, frame
        ds.StudyID, ds.StudyDate, ds.StudyTime = "1", "", ""
        ds.AccessionNumber, ds.ReferringPhysicianName, ds.OtherPatientNames = patient[:16], patient, patient
        ds.Modality, ds.SeriesNumber, ds.InstanceNumber, ds.Manufacturer = modality, 1, count - k, ""
        ds.ImageType, ds.PositionReferenceIndicator, ds.AcquisitionNumber = ["ORIGINAL", "PRIMARY", "AXIAL"], "", 1
        ds.Rows, ds.Columns = stored.shape[1], stored.shape[0]
        ds.SamplesPerPixel, ds.PhotometricInterpretation = 1, "MONOCHROME2"
        ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 16, 16, 15, 1
        ds.RescaleSlope, ds.RescaleIntercept = slope, intercept
        position = np.array(origin) + directions[:, 2] * spacing[2] * k + directions[:, 1] * tilt * k
        ds.ImagePositionPatient = [f"{value:.9g}" for value in position]
        ds.ImageOrientationPatient = [f"{value:.9g}" for value in [*directions[:, 0], *directions[:, 1]]]
        ds.PixelSpacing, ds.SliceThickness = [spacing[1], spacing[0]], spacing[2]
        pixels = np.ascontiguousarray(stored[:, :, k].T.astype("<i2"))
        ds.PixelData = pixels.tobytes()
        if rle:
            ds.compress(RLELossless, pixels, encoding_plugin="pydicom", generate_instance_uid=False)
        ds.save_as(path, enforce_file_format=True)
        paths.append(path)
    return paths
