"""`adawac phantom`, `adawac diagnose` and `adawac prepare`."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from adawac.cli.shell import (
    DATA,
    HERE,
    START,
    AsJson,
    Machines,
    app,
    plain_console,
    print_json,
    print_table,
    print_text,
    printable,
)
from adawac.errors import ConfigError

if TYPE_CHECKING:
    from adawac.data.cases import SampleTable
    from adawac.data.diagnosis_report import Diagnosis

_MOST_CASES = 20  # more of them than this would scroll everything else away

SourceName = Annotated[str, Parameter(help="How the scans are laid out: acdc, synapse, nifti, dicom or pictures.")]
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
        Parameter(help="Classes by label value: liver=1 vessel=2,3; or colour: crack=#ff0000.", consume_multiple=True),
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
            "classes": classes_of(self.classes),
            "skip_unlabelled": self.skip_unlabelled or None,
        }


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class AnnotationOptions:
    """What nobody has annotated."""

    unlabelled: Annotated[
        Literal["keep", "skip", "refuse", "empty"] | None,
        Parameter(help="Scans without a label map: refused by default; empty is for pictures."),
    ] = None
    labelled_slices: Annotated[
        Path | None, Parameter(help="CSV file with the columns case,slice: the others were never annotated.")
    ] = None
    ignore: Annotated[int | None, Parameter(help="Label value of voxels that count nowhere.")] = None


_PLAIN, _WHOLE = SourceOptions(), AnnotationOptions()


@app.command(group=START)
def phantom(
    folder: Annotated[Path, Parameter(help="A new or empty folder.")],
    /,
    *,
    pictures: Annotated[bool, Parameter(help="Draw pictures of surfaces instead of abdomens.")] = False,
    number: Annotated[int | None, Parameter(help="How many scans or pictures; by default 16, or 160.")] = None,
    seed: Annotated[int, Parameter(help="Other seeds are other patients, or other surfaces.")] = 0,
) -> None:
    """Write made-up scans, or pictures, with their labels as files: to try out the commands without data of your own.

    Scans are NIfTI files in nnU-Net's layout: imagesTr, labelsTr and dataset.json. Pictures are PNG files: images and
    masks.

    Example: adawac phantom scans

    Example: adawac phantom surfaces --pictures --number 40
    """
    import shlex

    from adawac.data.phantom import write_pictures
    from adawac.data.phantom.phantom_files import write_nifti_layout

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"Expected a new or empty folder, but {folder} holds files already. Give another one.")
    write, kind, usual = (write_pictures, "pictures", 160) if pictures else (write_nifti_layout, "scans", 16)
    count = usual if number is None else number
    if count < 1:
        raise ConfigError(f"Expected --number of at least 1, but got {count}.")
    write(folder, count, seed)
    words = shlex.join(["adawac", "diagnose", str(folder)])
    plain_console().print(f"{folder}: {count} {kind} with their labels.\nLook at them: {words}", soft_wrap=True)


@app.command(group=DATA)
def diagnose(
    data: Annotated[Path, Parameter(help="A prepared store, or a folder of scans.")],
    /,
    *,
    source: Annotated[str | None, Parameter(help="How the scans are laid out; recognised by default.")] = None,
    axis: Axis = None,
    threshold: Annotated[float, Parameter(help="Largest foreground share of a label-sparse slice.")] = 0.0,
    options: SourceOptions = _PLAIN,
    annotation: AnnotationOptions = _WHOLE,
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
    keywords = {**options.keywords(), **vars(annotation)}
    report = look(data, source, axis=axis, threshold=threshold, workers=workers, **keywords)
    if figure is not None:
        from adawac.data.diagnosis_report import save_diagnosis

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
        Literal["min-max", "z-score", "range", "none"] | None,
        Parameter(help="Scale each volume and channel on its own; range: the window, for all alike."),
    ] = None,
    size: Annotated[tuple[int, int] | None, Parameter(help="Keep copies of this height and width as well.")] = None,
    unit: Annotated[Literal["slice", "volume"] | None, Parameter(help="What one sample is.")] = None,
    tile: Annotated[int | None, Parameter(help="Cut pictures into tiles of this height and width.")] = None,
    overlap: Annotated[int | None, Parameter(help="Pixels that tiles share; an eighth of a tile by default.")] = None,
    options: SourceOptions = _PLAIN,
    annotation: AnnotationOptions = _WHOLE,
    modality: ModalityOption = None,
    dataset: Annotated[str | None, Parameter(help="Name of the data set.")] = None,
    workers: Workers = None,
    machines: Machines = HERE,
    overwrite: Annotated[bool, Parameter(help="Prepare again with other options, over an existing store.")] = False,
    as_json: AsJson = False,
) -> None:
    """Turn scans and their labels into a store that training reads.

    Run it again after an interruption or when scans were added: finished cases are not redone.

    Example: adawac prepare nifti Dataset007_Pancreas store

    Example: adawac prepare nifti scans store --images "*/ct.nii.gz" --labels "*/organs.nii.gz" --modality CT

    Example: adawac prepare pictures surfaces store --images "images/*" --labels "masks/*" --tile 512 --overlap 64

    Example: adawac prepare nifti scans store --shard $SLURM_ARRAY_TASK_ID/8
    """
    from adawac.data import preparation

    write = preparation.prepare if machines.shard is None else partial(preparation.prepare_share, machines.shard)
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
        tile=tile,
        overlap=overlap,
        workers=workers,
        engine=machines.engine,
        address=machines.address,
        overwrite=overwrite,
        modality=modality,
        **options.keywords(),
        **vars(annotation),
        dataset=dataset,
    )
    if isinstance(made, int):
        if as_json:
            print_json({"store": str(store), "waiting": made})
        else:
            print_text(f"This share is prepared; {made} cases of other shards are not. The last one ends it.\n")
        return
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
                "unlabelled": int(table.unlabelled.sum()),
                "partly_ignored": int(table.partly_ignored.sum()),
            }
        )
        return
    import shlex

    parts = "no split" if set(splits) == {"none"} else ", ".join(f"{name} {count}" for name, count in splits.items())
    plain_console().print(
        f"{store}: {made.dataset}, {len(made.cases)} cases, {len(table)} samples ({parts}).\n"
        f"Classes: {printable(', '.join(made.class_names[1:]))}.{_about_classes(made.class_names)}\n"
        f"Look at its labels: {shlex.join(['adawac', 'diagnose', str(store)])}{_about_splits(store, table)}",
        soft_wrap=True,
    )


def _about_classes(names: tuple[str, ...]) -> str:
    """Return what to add where classes were made of the values that occur."""
    unnamed = all(re.fullmatch(r"class -?\d+|foreground|#[0-9a-f]{6}", name) for name in names[1:])
    return " These are the label values that occur; --classes names, merges or drops them." if unnamed else ""


def _about_splits(store: Path, table: "SampleTable") -> str:
    """Return what to add where no case is marked for training or testing, or where the test cases have no labels."""
    from adawac.data.splits import labelled, suggest_split

    known = table.take(labelled(table))
    splits = set(table.split.tolist())
    purpose = next((word for part, word in (("train", "training"), ("test", "testing")) if part not in splits), None)
    if purpose is None and "test" in known.split:
        return ""
    problem = f"No case is marked for {purpose}" if purpose else "The test scans have no labels to score with"
    if split := suggest_split(known.patient, known.group, known.split):
        return f"\n{problem}: give --split {split}, as in {_train_command(store, split=split)}"
    return f"\n{problem}, and one labelled patient cannot be divided: prepare more of them."


def _train_command(store: object, *options: str, split: str) -> str:
    import shlex

    return shlex.join(["adawac", "train", str(store), *options, *(["--split", split] if split else []), "--out", "RUN"])


def classes_of(texts: tuple[str, ...] | None) -> dict[str, tuple[int, ...]] | None:
    """Return the classes by name; one that is named twice is an error, because the first would be lost."""
    if texts is None:
        return None
    from adawac.data.sources.source import label_value

    classes: dict[str, tuple[int, ...]] = {}
    for text in texts:
        name, _, values = (part.strip() for part in text.partition("="))
        try:
            numbers = tuple(label_value(value.strip()) for value in values.split(","))
        except ConfigError:
            raise
        except ValueError:
            numbers = ()
        if not name or not numbers:
            raise ConfigError(
                f"Expected a class with its label values, but got {text!r}. Write it like liver=1, vessel=2,3, or, "
                "where masks have colours, crack=#ff0000."
            )
        if name in classes:
            raise ConfigError(f"Expected each class once, but got {name!r} twice. Write it like {name}=1,2.")
        classes[name] = numbers
    return classes


def _show(report: "Diagnosis") -> None:
    console = plain_console()
    summary = report.summary
    console.print(
        f"{report.dataset}: {summary['cases']} cases of {summary['patients']} patients; "
        f"{summary['training_slices']} training slices, {summary['training_label_sparse']} of them label-sparse"
        + ("." if summary["xi"] is None else f" (ξ = {summary['xi']:.3f})."),
        soft_wrap=True,
    )
    if report.kind == "PictureSource" and report.cases:
        _show_pictures(report)
    states = summary["slices_by_state"]
    if states["unlabelled"] or states["partly ignored"]:
        console.print("Slices: " + ", ".join(f"{count} {state}" for state, count in states.items()) + ".")
    _show_classes(report)
    if any(case.slices > 1 for case in report.cases):  # a table of single pictures says nothing
        _show_cases(report)
    for name, messages in (("Fix", report.faults), ("Check", report.warnings)):
        for message in messages:
            console.print(f"{name}: {printable(message)}", soft_wrap=True)
    hint = report.recommendation
    console.print(f"Hint: {hint.method}. {hint.reason}", soft_wrap=True)
    for sentence in hint.basis:
        console.print(f"      {sentence}", soft_wrap=True)
    if hint.method != "none":
        settings = [word for path, value in hint.settings.items() for word in ("--set", f"{path}={value}")]
        store = report.path if report.kind == "store" else "STORE"
        if store == "STORE":
            first = "      Prepare the scans with the same options (adawac prepare SOURCE SCANS STORE), then:"
            console.print(first, soft_wrap=True)
        command = _train_command(store, "--method", hint.method, *settings, split=report.suggested_split)
        console.print(f"      {command}", soft_wrap=True)


def _show_pictures(report: "Diagnosis") -> None:
    summary = report.summary
    sizes = [" × ".join(map(str, shape[1:] if shape[0] == 1 else shape)) for shape in summary["shapes"]]
    several = len({case.shape for case in report.cases})
    sizes += [f"and {several - len(sizes)} more sizes"] if several > len(sizes) else []
    empty = "" if summary["empty_share"] is None else f"; {summary['empty_share']:.1%} of the labelled ones are empty"
    plain_console().print(
        f"Pictures: {', '.join(sizes)} pixels; channels {', '.join(report.channels)}{empty}.", soft_wrap=True
    )


def _show_classes(report: "Diagnosis") -> None:
    coloured = any(value.startswith("#") for part in report.classes for value in part.values)
    rows = [
        (
            part.name,
            *([", ".join(part.values)] if coloured else []),
            *(f"{share:.2%}" for share in (part.voxel_share, part.foreground_share, part.slice_share)),
            str(part.cases),
        )
        for part in report.classes
    ]
    colour = ["colour"] if coloured else []
    print_table(("class", *colour, "of all voxels", "of foreground", "of slices", "cases"), rows, title="Classes")


def _show_cases(report: "Diagnosis") -> None:
    ordered = sorted(report.training, key=lambda case: (case.xi or 0, case.id))
    title = "Training cases, the most label-sparse first"
    if len(ordered) > _MOST_CASES:
        title += f" ({_MOST_CASES} of {len(ordered)}; --json has all)"
    rows = []
    partly = any(case.unlabelled or case.partly_ignored for case in ordered)
    for case in ordered[:_MOST_CASES]:
        voxels = sum(case.class_voxels)
        share = 1 - case.class_voxels[0] / voxels if voxels else 0.0
        states = tuple(str(count) for count in (case.unlabelled, case.partly_ignored)) if partly else ()
        rows.append((case.id, str(case.slices), *states, str(case.label_sparse), f"{case.xi:.2f}", f"{share:.2%}"))
    header = (
        "case",
        "slices",
        *(("unlabelled", "partly ignored") if partly else ()),
        "label-sparse",
        "ξ",
        "foreground",
    )
    print_table(header, rows, title=title)
