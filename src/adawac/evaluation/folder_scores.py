"""`score`: label maps of any tool, a folder of them or several side by side, against the truth."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from adawac.data.cases import sample_id
from adawac.data.parallel import check_engine, run_jobs, share_of
from adawac.data.preprocessing import PreparedGrid, Preprocessing
from adawac.data.sources.label_maps import (
    LABELS,
    PICTURES,
    LabelMap,
    LabelScheme,
    Matches,
    find_label_maps,
    find_scheme,
    label_map_stem,
    match_cases,
    put_on_one_grid,
    read_label_map,
    some,
)
from adawac.data.sources.nifti import patient_of, read_groups
from adawac.data.sources.scan_files import label_values
from adawac.data.sources.source import as_classes
from adawac.errors import AdawacError, ConfigError, DataError, MissingFileError
from adawac.evaluation.case_scores import CaseResult, DistanceUnit, Maps, Rules, score_maps
from adawac.evaluation.evaluation_record import Evaluation, PredictionFolder, ScoredCase, assemble
from adawac.evaluation.plan import IN_VOXELS, checked_metrics
from adawac.evaluation.scorers import default_workers
from adawac.files import explained, write_csv, write_text
from adawac.metrics import ClassScore
from adawac.metrics.masks import checked_convention, checked_tolerance
from adawac.runs import Score


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Why something could not be scored.

    Attributes:
        predictions: The folder; empty where the truth is at fault.
        case: The case; empty where it is about several.
        message: One sentence or two.
    """

    predictions: str
    case: str
    message: str


@dataclass(frozen=True, kw_only=True)
class FolderScores:
    """What came of `score`.

    Attributes:
        evaluations: One for each folder of which a case could be scored, in their order.
        faults: What could not be scored.
        waiting: How many cases other shards have yet to score; until they have, the rest is empty.
    """

    evaluations: list[Evaluation]
    faults: list[Fault]
    waiting: int = 0


@dataclass(frozen=True, kw_only=True)
class _Files:
    """A folder of predictions with what belongs to the truth."""

    folder: Path
    name: str
    matches: Matches


def score(
    truth: Path | str,
    predictions: Path | str | Sequence[Path | str],
    *,
    classes: Mapping[str, int | Iterable[int]] | None = None,
    dataset_json: Path | str | None = None,
    ignore: int | None = None,
    convention: str = "strict",
    metrics: Sequence[str] = ("dice", "hd95"),
    spacing: DistanceUnit | None = None,
    tolerance: float = 1.0,
    axis: int = 2,
    orientation: str | None = None,
    patient: str | None = None,
    groups: Path | str | None = None,
    workers: int | None = None,
    progress: bool | None = None,
    engine: str = "local",
    address: str | None = None,
    parts: Path | str | None = None,
    shard: str | None = None,
) -> FolderScores:
    r"""Score label maps of any tool: NIfTI, NRRD and MetaImage, DICOM SEG, pictures. Nothing is written but `parts`.

    A prediction belongs to the truth of the same name. What cannot be scored (no partner, another grid, fractions,
    unknown values, a damaged file) is a `Fault`, and everything else is scored.

    Args:
        truth: Folder of the true label maps, or one of them.
        predictions: Folders of predicted label maps, or one label map where `truth` is one.
        classes: Class name → label value, or values; 0 is the background unless named. By default what nnU-Net's
            `dataset.json` says, with its regions; otherwise every value that occurs in the truth.
        dataset_json: That file; by default it is looked for with the truth, beside it and with the predictions.
        ignore: Value of voxels in the truth that count nowhere; by default nnU-Net's `ignore` label.
        convention: What empty masks score: `strict`, `adawac`, `transunet`, `nnunet` or `nan`.
        metrics: What summaries and tables show; the scores have all.
        spacing: Measure distances in `mm` or in voxels (`voxel`), by default as `evaluate` does.
        tolerance: How far a surface may be off for `surface_dice`, in that unit.
        axis: Voxel axis along which slices are cut.
        orientation: Where voxel axes are to point first, such as "RAS"; by default label maps stay as they lie.
        patient: Regular expression; what its first group finds in a case's name is the patient (`(patient\d+)_`). By
            default every case is a separate patient.
        groups: CSV file with the columns `patient,group`.
        workers: Processes that score; 0 scores in this one. The results are the same.
        progress: Show a progress bar on stderr; by default where that is a terminal.
        engine: `local`, or `ray`: cases are tasks of a cluster, whose machines see all files under the same paths.
        address: Of the Ray cluster; None starts one on this machine.
        parts: A folder that keeps the scores of each case as it is done. A call with the same files and options takes
            what is there: after an interruption, or from other machines.
        shard: `K/N`: score only every Nth case from the Kth on, into `parts`. N such calls, on as many machines, score
            all of them; whichever finds all cases scored returns the evaluations.

    Returns:
        An evaluation of each folder, and what could not be scored.

    Examples:
        >>> import adawac
        >>> result = adawac.score("scans/labelsTr", "masks", workers=0)
        >>> [evaluation] = result.evaluations
        >>> evaluation.num_cases, result.faults
        (2, [])
        >>> [score.value for score in evaluation.scores if score.metric == "dice" and score.class_name == "liver"]
        [1.0, 1.0]
    """
    part = share_of(shard)
    if shard is not None and parts is None:
        raise ConfigError("Expected a folder in which all shards keep their scores, but got none. Give `parts`.")
    check_engine(engine, address)
    measured, slicing = checked_metrics(metrics), Preprocessing(axis=axis, orientation=orientation)
    checked_convention(convention)
    if workers is not None and workers < 0:
        raise ConfigError(f"Expected `workers` to be 0 or more, but got {workers}. Raise it, or leave it out.")
    truth, folders = Path(truth), _as_paths(predictions)
    ambiguous, true_files, files = _list(truth, folders)
    about = [path if path.is_dir() else path.absolute().parent for path in (truth, *folders)]
    scheme = find_scheme(about, classes, None if dataset_json is None else Path(dataset_json), ignore)
    group_of = read_groups(Path(groups)) if groups else {}
    patients = {case: patient_of(case, patient) for case in true_files}
    cases = [case for case in true_files if any(case in listed.matches.pairs for listed in files)]
    rules = Rules(
        convention=convention,
        unit=_unit([true_files[case] for case in cases], spacing, convention),
        tolerance=checked_tolerance(tolerance),
    )
    if workers is None and engine == "local":
        workers = _workers(true_files[cases[0]], len(cases))
    run = partial(
        run_jobs,
        workers=max(workers, 1) if workers is not None else None,
        progress=progress,
        engine=engine,
        address=address,
    )
    if scheme is None:
        scheme = _scheme_of_values([true_files[case] for case in cases], run, ignore)
    jobs = [
        ScoreJob(
            case=case, truth=true_files[case], predictions=tuple(listed.matches.pairs.get(case) for listed in files)
        )
        for case in cases
    ]
    scorer = CaseScorer(scheme=scheme, slicing=slicing, rules=rules, parts=None if parts is None else Path(parts))
    outcomes = {job.case: outcome for job, outcome in run(scorer, jobs[part], title="Scoring")}
    if shard is not None:
        outcomes |= {job.case: outcome for job in jobs if job.case not in outcomes and (outcome := scorer.kept(job))}
    if waiting := len(cases) - len(outcomes):
        return FolderScores(evaluations=[], faults=[], waiting=waiting)
    outcomes = {case: outcomes[case] for case in cases}
    folder = about[0].resolve()
    dataset = folder.parent.name if folder.name.lower() in LABELS else folder.name  # that of its label maps lies in it
    evaluations = []
    for number, listed in enumerate(files):
        results = [
            (
                _scored_case(dataset, case, patients[case], group_of.get(patients[case], ""), slicing, result),
                result,
            )
            for case, result in ((case, outcomes[case][number]) for case in cases)
            if isinstance(result, CaseResult)
        ]
        if results:
            evaluations.append(
                assemble(
                    results,
                    run=PredictionFolder.of(listed.folder, listed.name),
                    name=convention,
                    dataset=dataset,
                    part="",
                    checkpoint="",
                    epoch=None,
                    rules=rules,
                    metrics=measured,
                    class_names=scheme.names,
                )
            )
    return FolderScores(evaluations=evaluations, faults=[*ambiguous, *_faults(files, outcomes)])


# -- files ------------------------------------------------------------------------------------------------------------


def _as_paths(predictions: Path | str | Sequence[Path | str]) -> list[Path]:
    paths = [Path(path) for path in ([predictions] if isinstance(predictions, Path | str) else predictions)]
    if not paths:
        raise ConfigError("Expected folders of predictions, but got none. Give at least one.")
    for number, path in enumerate(paths):
        if path.resolve() in (other.resolve() for other in paths[:number]):
            raise ConfigError(f"Expected each folder of predictions once, but got {path} twice. Leave one out.")
    return paths


def _list(truth: Path, folders: Sequence[Path]) -> tuple[list[Fault], dict[str, Path], list[_Files]]:
    """Return what is wrong with the truth's names, its files by case, and what belongs to them in each folder."""
    if truth.is_file():
        return [], {label_map_stem(truth): truth}, [_single(truth, path, folders) for path in folders]
    if single := [path for path in folders if path.is_file()]:
        raise ConfigError(
            f"Expected folders of predictions beside {truth}, but {single[0]} is a file. Give its folder, or the file "
            "of its truth."
        )
    listed = find_label_maps(truth)
    ambiguous = [_ambiguity("", case, paths) for case, paths in listed.items() if paths[1:]]
    true_files = {case: paths[0] for case, paths in listed.items() if not paths[1:]}
    files = [
        _Files(folder=folder, name=name, matches=match_cases(listed, find_label_maps(folder)))
        for folder, name in zip(folders, _names(folders), strict=True)
    ]
    if not any(listed.matches.pairs for listed in files):
        examples = files[0].matches.unknown[:1] or [files[0].folder]
        raise DataError(
            f"Expected predictions called as the label maps in {truth} ({some(list(true_files))}), but none is, "
            f"such as {examples[0]}. Rename them."
        )
    return ambiguous, true_files, files


def _single(truth: Path, path: Path, others: Sequence[Path]) -> _Files:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "is not there"
        raise MissingFileError(f"Expected a label map beside {truth}, but {path} {what}. Give a file for a file.")
    pairs = {label_map_stem(truth): path}
    name = dict(zip(others, _names(others), strict=True))[path]
    return _Files(folder=path, name=name, matches=Matches(pairs=pairs, missing=[], unknown=[], ambiguous={}))


def _names(folders: Sequence[Path]) -> list[str]:
    """Return what tables call the folders: their names where these differ."""
    names = [folder.resolve().name for folder in folders]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def _ambiguity(predictions: str, case: str, paths: Sequence[Path]) -> Fault:
    message = f"Expected one label map of {case}, but got {some(paths)}. Move the others away."
    return Fault(predictions=predictions, case=case, message=message)


def _faults(files: Sequence[_Files], outcomes: Mapping[str, Sequence[CaseResult | str | None]]) -> Iterator[Fault]:
    for number, listed in enumerate(files):
        matches = listed.matches
        if matches.missing:
            message = f"Expected a prediction of each case in {listed.folder}, but {_without(matches.missing)}"
            yield Fault(predictions=listed.name, case="", message=message)
        if matches.unknown:
            names = [path.name for path in matches.unknown]
            message = f"Expected a truth of each prediction in {listed.folder}, but {_without(names)}"
            yield Fault(predictions=listed.name, case="", message=message)
        for case, paths in matches.ambiguous.items():
            yield _ambiguity(listed.name, case, paths)
        for case, results in outcomes.items():
            if isinstance(reason := results[number], str):
                yield Fault(predictions=listed.name, case=case, message=reason)


def _without(names: Sequence[str]) -> str:
    return f"{len(names)} {'has' if len(names) == 1 else 'have'} none: {some(names)}."


def _unit(truth: Sequence[Path], asked: DistanceUnit | None, convention: str) -> DistanceUnit:
    pictures = [path for path in truth if path.name.lower().endswith(PICTURES)]
    if asked == "mm" and pictures:
        raise DataError(f"Expected a voxel size to measure in mm, but {pictures[0]} has none. Measure in voxels.")
    return asked or ("voxel" if pictures or convention in IN_VOXELS else "mm")


def _scheme_of_values(paths: Sequence[Path], run: Callable[..., Any], ignore: int | None) -> LabelScheme:
    """Return a class for every value in the truth; segments of a SEG keep their labels."""
    classes: dict[str, set[int]] = {}
    for _, values in run(_named_values, paths, title="Looking for label values"):
        for name, numbers in values.items():
            classes.setdefault(name, set()).update(numbers)
    known = {name: sorted(numbers - {ignore}) for name, numbers in classes.items()}
    order = sorted((name for name, numbers in known.items() if numbers), key=lambda name: known[name])
    if not order:
        raise DataError("Expected label values other than 0 in the truth, but there are none. Give `classes`.")
    return LabelScheme(classes=as_classes({name: known[name] for name in order}), ignore=ignore)


def _named_values(path: Path) -> dict[str, set[int]]:
    """Return the values in a label map by class name; of a file that cannot be read, none: scoring it says why."""
    try:
        label_map = read_label_map(path)
        values = label_values(label_map.values, path)
    except AdawacError:
        return {}
    if label_map.segments is not None:
        return {name: set(numbers) for name, numbers in label_map.segments.items()}
    return {f"class {value}": {value} for value in values - {0}}


# -- scores -----------------------------------------------------------------------------------------------------------


def _workers(example: Path, cases: int) -> int:
    """Return how many processes score by default, as if all cases were as large as one of them."""
    try:
        return min(default_workers(cases * read_label_map(example).values.size), cases)
    except AdawacError:
        return 0


CaseOutcome = list[CaseResult | str | None]
"""The scores of a case in each folder, what is wrong, or None where there is no prediction."""


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """A case: its truth, and its label map in each folder."""

    case: str
    truth: Path
    predictions: tuple[Path | None, ...]


@dataclass(frozen=True, kw_only=True)
class CaseScorer:
    """Scores cases, in any process.

    Attributes:
        scheme: What label values mean.
        slicing: How volumes are cut.
        rules: How to score.
        parts: Where scores are kept; None keeps none.
    """

    scheme: LabelScheme
    slicing: Preprocessing
    rules: Rules
    parts: Path | None

    def __call__(self, job: ScoreJob) -> CaseOutcome:
        """Score the predictions of one case; the truth is read once. What is wrong with a file is its message."""
        if (kept := self.kept(job)) is not None:
            return kept
        path = self._path(job)  # of the files as they are before they are read
        read = cache(lambda: read_label_map(job.truth))
        outcome = [
            None if prediction is None else _attempt(read, prediction, self.scheme, self.slicing, self.rules)
            for prediction in job.predictions
        ]
        if path is not None:
            with explained(ConfigError, f"scores to {self.parts}", "Make room, or name another folder."):
                write_text(path, _dump({"case": job.case, "scores": [_as_plain(result) for result in outcome]}))
        return outcome

    def kept(self, job: ScoreJob) -> CaseOutcome | None:
        """Return what was scored before, from the same files with the same options; None where nothing was."""
        path = self._path(job)
        if path is None or not path.is_file():
            return None
        try:
            return [_from_plain(result) for result in json.loads(path.read_text(encoding="utf-8"))["scores"]]
        except (ValueError, LookupError, TypeError):  # it is damaged, so the case is scored again
            return None

    def _path(self, job: ScoreJob) -> Path | None:
        """Return the file of a case's scores, whose name says what they were made of."""
        if self.parts is None:
            return None
        files = [path and (str(path.absolute()), _state(path)) for path in (job.truth, *job.predictions)]
        settings = [_FORMAT, vars(self.scheme), self.slicing.to_dict(), vars(self.rules), job.case, files]
        digest = hashlib.sha256(_dump(settings).encode()).hexdigest()
        return self.parts / f"{digest[:32]}.json"


_FORMAT = 1


def _dump(value: Any) -> str:
    """Return JSON that Python reads back number for number, infinities included."""
    return json.dumps(value, sort_keys=True, default=lambda number: number.item())


def _state(path: Path) -> tuple[int, int] | None:
    """Return what changes with a file; None where it is gone, which scoring says."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _as_plain(result: CaseResult | str | None) -> Any:
    """Return a result as plain values for JSON, which has every number in full."""
    if not isinstance(result, CaseResult):
        return result
    plain = {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(result).items()}
    return plain | {"rows": [asdict(row) for row in result.rows]}


def _from_plain(plain: Any) -> CaseResult | str | None:
    if not isinstance(plain, dict):
        return plain  # type: ignore[no-any-return]
    counts = {name: np.array(plain[name], dtype=np.int32) for name in ("pred", "truth", "both")}
    rows = [ClassScore(**row) for row in plain["rows"]]
    return CaseResult(**plain | counts | {"rows": rows, "sparse": np.array(plain["sparse"], dtype=bool)})


def _attempt(
    read_truth: Callable[[], LabelMap], path: Path, scheme: LabelScheme, slicing: Preprocessing, rules: Rules
) -> CaseResult | str:
    try:
        truth, prediction = put_on_one_grid(read_truth(), read_label_map(path))
        return score_maps(_maps(truth, prediction, scheme, slicing), rules)
    except AdawacError as error:
        return str(error)
    except Exception as error:  # whatever it is, the others are still scored
        return f"Unexpected {type(error).__name__} with {path}: {' '.join(str(error).split())}"


def _maps(truth: LabelMap, prediction: LabelMap, scheme: LabelScheme, slicing: Preprocessing) -> Maps:
    """Return what is scored, as `evaluate` has it: slices along an axis, end to end in memory."""
    true_labels, labels = scheme.read(truth, truth=True), scheme.read(prediction, truth=False)
    shape, affine = true_labels.shape, truth.affine
    sizes = np.ones(len(shape)) if affine is None else np.linalg.norm(affine[:3, :3], axis=0)
    spacing = tuple(float(size) for size in sizes)
    if len(shape) == 2:  # a picture is a slice
        pair, pixel = (labels[None], true_labels[None]), spacing
        volumes = labels, true_labels
    else:
        grid = PreparedGrid(slicing, shape, spacing, affine, truth.path)
        pair = slicing.cut(grid.prepare(labels, spline=0)), slicing.cut(grid.prepare(true_labels, spline=0))
        volumes, spacing = (slicing.join(pair[0]), slicing.join(pair[1])), grid.spacing
        pixel = tuple(size for number, size in enumerate(spacing) if number != slicing.axis)
    return Maps(
        pred=volumes[0],
        truth=volumes[1],
        pred_slices=pair[0],
        truth_slices=pair[1],
        spacing=spacing,
        pixel=pixel,
        num_classes=scheme.num_classes,
        regions=tuple(scheme.regions.values()),
    )


def _scored_case(
    dataset: str, case: str, patient: str, group: str, slicing: Preprocessing, result: CaseResult
) -> ScoredCase:
    numbers = range(len(result.sparse))
    samples = [sample_id(dataset, patient, case, slicing.axis_name, number) for number in numbers]
    return ScoredCase(id=case, patient=patient, group=group, samples=samples)


# -- files of results -------------------------------------------------------------------------------------------------


def write_case_scores(path: Path | str, evaluations: Sequence[Evaluation]) -> None:
    """Write the scores of each case as CSV: a row for each folder, case and class, a column for each metric."""
    rows = [row for evaluation in evaluations for row in _case_rows(evaluation)]
    with explained(ConfigError, str(path), "Name another file."):
        write_csv(Path(path), list(dict.fromkeys(name for row in rows for name in row)), rows)


def _case_rows(evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    named = ("dataset", "patient", "group", "case", "label", "class_name")

    def of_class(score: Score) -> tuple[str, int]:
        return score.case, score.label

    for _, scores in groupby(evaluation.scores, key=of_class):
        listed = list(scores)
        facts = {name: getattr(listed[0], name) for name in named}
        yield {"predictions": evaluation.label, **facts, **{score.metric: score.value for score in listed}}
