"""`adawac diagnose` and `adawac prepare`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from adawac.cli.shell import DATA, AsJson, app, plain_console, print_json, print_table, printable
from adawac.errors import ConfigError

if TYPE_CHECKING:
    from adawac.data.diagnosis_report import Diagnosis

_MOST_CASES = 20  # more of them than this would scroll everything else away

SourceName = Annotated[str, Parameter(help="How the scans are laid out: acdc, synapse, nifti or dicom.")]
Axis = Annotated[int | None, Parameter(help="Voxel axis along which volumes are cut; the source's by default.")]
Workers = Annotated[int | None, Parameter(help="Processes; all processors by default.")]
ModalityOption = Annotated[str | None, Parameter(help="CT or MR: decides how intensities are clipped.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where scans and labels are, and what they are called: what every command that reads scans takes."""

    images: Annotated[
        tuple[str, ...] | None, Parameter(help="Pattern of the image files below the folder, one for each channel.")
    ] = None
    labels: Annotated[str | None, Parameter(help="Pattern of the label files.")] = None
    classes: Annotated[
        tuple[str, ...] | None,
        Parameter(help="Classes by label value: liver=1 vessel=2,3 background=0,5.", consume_multiple=True),
    ] = None
    channels: Annotated[
        tuple[str, ...] | None,
        Parameter(help="Names of the channels, as many as a 4D file has.", consume_multiple=True),
    ] = None
    patient: Annotated[str | None, Parameter(help="Regular expression: the patient within a case's name.")] = None
    groups: Annotated[Path | None, Parameter(help="CSV file with the columns patient,group.")] = None
    skip_unlabelled: Annotated[
        bool, Parameter(help="Leave scans without a label map out instead of refusing them.")
    ] = False

    def keywords(self) -> dict[str, Any]:
        """Return them as a source takes them; None is what was not given."""
        return {
            **vars(self),
            "images": list(self.images) if self.images else None,
            "classes": _classes_of(self.classes),
            "skip_unlabelled": self.skip_unlabelled or None,
        }


_PLAIN = SourceOptions()


@app.command(group=DATA)
def diagnose(
    data: Annotated[Path, Parameter(help="A prepared store, or a folder of scans.")],
    /,
    *,
    source: Annotated[str | None, Parameter(help="How the scans are laid out; recognised by default.")] = None,
    axis: Axis = None,
    threshold: Annotated[float, Parameter(help="Largest foreground share of a label-sparse slice.")] = 0.0,
    options: SourceOptions = _PLAIN,
    workers: Workers = None,
    figure: Annotated[Path | None, Parameter(help="Draw what was found: a .png, .svg or .pdf file.")] = None,
    as_json: AsJson = False,
) -> int:
    """Say whether slices are label-sparse or label-dense, per case and class, and which method fits.

    The exit code is 1 where something must be fixed before the data can be used.

    Example: adawac diagnose store --figure labels.png

    Example: adawac diagnose scans --images "*/ct.nii.gz" --labels "*/organs.nii.gz"
    """
    from adawac.data.diagnosis import diagnose as look

    if figure is not None:
        from adawac.figures.picture import check_ending

        check_ending(figure)  # before minutes of reading
    report = look(data, source, axis=axis, threshold=threshold, workers=workers, **options.keywords())
    if figure is not None:
        from adawac.data.diagnosis_figure import save_diagnosis

        save_diagnosis(report, figure)
    if as_json:
        print_json(report.to_dict())
    else:
        _show(report)
    return 1 if report.faults else 0


@app.command(group=DATA)
def prepare(
    source: SourceName,
    scans: Annotated[Path, Parameter(help="Folder of the scans.")],
    store: Annotated[Path, Parameter(help="Folder of the store to be made.")],
    /,
    *,
    axis: Axis = None,
    orientation: Annotated[str | None, Parameter(help="Turn the voxel axes to it first, such as RAS.")] = None,
    spacing: Annotated[tuple[float, float, float] | None, Parameter(help="Resample to this voxel size in mm.")] = None,
    window: Annotated[tuple[float, float] | None, Parameter(help="Clip intensities to this range.")] = None,
    clip_quantile: Annotated[float | None, Parameter(help="Clip each volume at this quantile.")] = None,
    normalisation: Annotated[
        Literal["min-max", "z-score", "none"] | None, Parameter(help="Scale each volume and channel on its own.")
    ] = None,
    size: Annotated[tuple[int, int] | None, Parameter(help="Keep copies of this height and width as well.")] = None,
    unit: Annotated[Literal["slice", "volume"] | None, Parameter(help="What one sample is.")] = None,
    options: SourceOptions = _PLAIN,
    modality: ModalityOption = None,
    dataset: Annotated[str | None, Parameter(help="Name of the data set.")] = None,
    workers: Workers = None,
    overwrite: Annotated[bool, Parameter(help="Prepare again with other options, over an existing store.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn scans and their labels into a store that training reads.

    Run it again after an interruption or when scans were added: finished cases are not redone.

    Example: adawac prepare nifti Dataset007_Pancreas store

    Example: adawac prepare nifti scans store --images "*/ct.nii.gz" --labels "*/organs.nii.gz" --modality CT
    """
    from adawac.data.preparation import prepare as write

    made = write(
        source,
        scans,
        store,
        axis=axis,
        orientation=orientation,
        spacing=spacing,
        window=window,
        clip_quantile=clip_quantile,
        normalisation=normalisation,
        size=size,
        unit=unit,
        workers=workers,
        overwrite=overwrite,
        modality=modality,
        **options.keywords(),
        dataset=dataset,
    )
    table = made.table
    splits = {name or "none": int((table.split == name).sum()) for name in sorted(set(table.split.tolist()))}
    if as_json:
        print_json(
            {
                "store": str(store),
                "dataset": made.dataset,
                "classes": list(made.class_names),
                "cases": len(made.cases),
                "samples": len(table),
                "samples_by_split": splits,
                "label_sparse": int(table.label_sparse.sum()),
            }
        )
        return
    import shlex

    import numpy as np

    parts = "no split" if set(splits) == {"none"} else ", ".join(f"{name} {count}" for name, count in splits.items())
    unlabelled = bool(np.isnan(table.fraction[table.split == "test"]).all())
    plain_console().print(
        f"{store}: {made.dataset}, {len(made.cases)} cases, {len(table)} samples ({parts}).\n"
        f"Classes: {printable(', '.join(made.class_names[1:]))}.{_about_classes(made.class_names)}\n"
        f"Look at its labels: {shlex.join(['adawac', 'diagnose', str(store)])}{_about_splits(splits, unlabelled)}",
        soft_wrap=True,
    )


def _about_classes(names: tuple[str, ...]) -> str:
    """Return what to add where classes were made of the values that occur."""
    unnamed = all(re.fullmatch(r"class -?\d+", name) for name in names[1:])
    return " These are the label values that occur; --classes names, merges or drops them." if unnamed else ""


def _about_splits(splits: dict[str, int], unlabelled: bool) -> str:
    """Return what to add where nothing says who trains and who tests, or where those who test have no labels."""
    who = next((who for part, who in (("train", "trains"), ("test", "tests")) if part not in splits), None)
    if who is not None:
        return f"\nNothing says who {who}: give --split stratified or fold:0/5 to adawac train."
    if unlabelled:
        return "\nThe test scans have no labels to score with: give --split stratified or fold:0/5 to adawac train."
    return ""


def _classes_of(texts: tuple[str, ...] | None) -> dict[str, tuple[int, ...]] | None:
    """Return the classes by name; one that is named twice is an error, because the first would be lost."""
    if texts is None:
        return None
    classes: dict[str, tuple[int, ...]] = {}
    for name, values in map(_class, texts):
        if name in classes:
            raise ConfigError(f"Expected each class once, but got {name!r} twice. Write it like {name}=1,2.")
        classes[name] = values
    return classes


def _class(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, values = text.partition("=")
    try:
        numbers = tuple(int(value) for value in values.split(","))
    except ValueError:
        numbers = ()
    if not name.strip() or not numbers:
        raise ConfigError(
            f"Expected a class with its label values, but got {text!r}. Write it like liver=1, or vessel=2,3."
        )
    return name.strip(), numbers


def _show(report: "Diagnosis") -> None:
    console = plain_console()
    summary = report.summary
    console.print(
        f"{report.dataset}: {summary['cases']} cases of {summary['patients']} patients; "
        f"{summary['training_slices']} training slices, {summary['training_label_sparse']} of them label-sparse"
        + ("." if summary["xi"] is None else f" (ξ = {summary['xi']:.3f})."),
        soft_wrap=True,
    )
    _show_classes(report)
    _show_cases(report)
    for name, messages in (("Fix", report.faults), ("Check", report.warnings)):
        for message in messages:
            console.print(f"{name}: {printable(message)}", soft_wrap=True)
    hint = report.recommendation
    console.print(f"Hint: {hint.method}. {hint.reason}", soft_wrap=True)
    for sentence in hint.basis:
        console.print(f"      {sentence}", soft_wrap=True)
    if hint.settings:
        options = " ".join(f"--set {path}={value}" for path, value in hint.settings.items())
        console.print(f"      adawac train STORE --method {hint.method} {options} --out RUN", soft_wrap=True)


def _show_classes(report: "Diagnosis") -> None:
    rows = [
        (
            part.name,
            *(f"{share:.2%}" for share in (part.voxel_share, part.foreground_share, part.slice_share)),
            str(part.cases),
        )
        for part in report.classes
    ]
    print_table(("class", "of all voxels", "of foreground", "of slices", "cases"), rows, title="Classes")


def _show_cases(report: "Diagnosis") -> None:
    ordered = sorted(report.training, key=lambda case: (case.xi or 0, case.id))
    title = "Training cases, the most label-sparse first"
    if len(ordered) > _MOST_CASES:
        title += f" ({_MOST_CASES} of {len(ordered)}; --json has all)"
    rows = []
    for case in ordered[:_MOST_CASES]:
        voxels = sum(case.class_voxels)
        share = 1 - case.class_voxels[0] / voxels if voxels else 0.0
        rows.append((case.id, str(case.slices), str(case.label_sparse), f"{case.xi:.2f}", f"{share:.2%}"))
    print_table(("case", "slices", "label-sparse", "ξ", "foreground"), rows, title=title)
