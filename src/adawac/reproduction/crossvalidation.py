"""Cross-validation: every patient is scored once, by a network that was not trained on them."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from adawac.config import TrainConfig, override, to_dict
from adawac.config.settings import decisive
from adawac.config.values import flatten
from adawac.data.cases import SampleTable
from adawac.data.parallel import share_of
from adawac.data.splits import labelled
from adawac.data.store import Store
from adawac.errors import ConfigError, RunError
from adawac.evaluation.case_scores import count_slices
from adawac.evaluation.comparison import check_units
from adawac.evaluation.evaluation_record import Evaluation, SliceScores, join_slices, slices_of
from adawac.evaluation.gallery import make_slice
from adawac.evaluation.out_of_fold import TABLE, Doubts, plan_fold, predict_out_of_fold, read_doubts, read_losses
from adawac.evaluation.plan import Plan
from adawac.evaluation.tables import write_tables
from adawac.files import LOCK, FolderLock, explained, is_temporary, make_folder
from adawac.metrics.masks import checked_convention
from adawac.report.label_errors import LIST, LabelError, find_label_errors, with_doubts, write_label_errors
from adawac.reproduction.engines import GridProgress, build_engine
from adawac.reproduction.grid_data import check_scorable
from adawac.reproduction.grids import Row
from adawac.reproduction.jobs import Job, JobOutcome, State, make_jobs, store_digest
from adawac.reproduction.reproduction import check_jobs
from adawac.runs import FIELDS, Run, RunWriter, Slice, write_gallery, write_scores
from adawac.runs.layout import INFO, checkpoint_path, is_number, read_json, strict, write_json

log = logging.getLogger(__name__)

SETTINGS = "crossval.json"
"""What a folder was begun with."""
FORMAT_VERSION = 1
POOLED = "pooled"
"""The run folder of all folds."""
_ENDINGS = (".csv", ".json", ".md", ".tex")

_BEGINNING = 1.0  # seconds to wait for another process that writes to the folder
_COLLECTING = 600.0  # seconds that another shard may take to bring the folds together
_SHOWN = 100  # suspects in the report with their pictures
_ADVICE = "Make room, or fix that, and give the same command: folds that are done are kept."


@dataclass(frozen=True, kw_only=True, eq=False)
class FoldJob(Job):
    """A fold: trained on the other folds, scored, and its predictions and losses kept in `out_of_fold`."""

    @property
    def out_of_fold(self) -> Path:
        """Where predictions and losses of the fold's samples are kept."""
        return self.folder / "out-of-fold"

    @property
    def state(self) -> State:
        """How far the fold has come; predictions of earlier weights do not count."""
        state = super().state
        return "trained" if state == "done" and not self._is_predicted else state

    @property
    def _is_predicted(self) -> bool:
        table, weights = self.out_of_fold / TABLE, checkpoint_path(self.folder, self.weights)
        return table.is_file() and not (weights.is_file() and weights.stat().st_mtime_ns > table.stat().st_mtime_ns)

    def finish(self) -> None:
        """Calibrate the network on its fold, and keep what it says of it."""
        if not self._is_predicted:
            log.info("predicting the fold of %s", self.name)
            predict_out_of_fold(Run(self.folder), self.out_of_fold)


@dataclass(frozen=True, kw_only=True)
class CrossValidation:
    """What came of a cross-validation.

    Attributes:
        folder: Its folder.
        runs: The run folder of each fold.
        failures: Folds that failed, and why. Then the rest is missing.
        skipped: How many folds had been done before.
        waiting: How many folds other shards have yet to do. Until they have, the rest is missing.
        evaluation: The scores of all patients, each by the network that never saw them; None where folds failed.
        suspects: Samples whose labels these networks contradict, the plainest first.
        files: What was written beside the runs.
    """

    folder: Path
    runs: tuple[Path, ...]
    failures: Mapping[Job, JobOutcome]
    skipped: int
    waiting: int = 0
    evaluation: Evaluation | None = None
    suspects: tuple[LabelError, ...] = ()
    files: tuple[Path, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values for JSON."""
        return strict(  # type: ignore[no-any-return]
            {
                "folder": self.folder,
                "runs": self.runs,
                "skipped": self.skipped,
                "waiting": self.waiting,
                "failures": {job.name: asdict(outcome) for job, outcome in self.failures.items()},
                "scores": self.evaluation and self.evaluation.to_dict(),
                "label_errors": [asdict(suspect) for suspect in self.suspects],
                "files": self.files,
            }
        )


def crossval(
    config: TrainConfig,
    out: Path | str,
    *,
    folds: int = 5,
    test: Literal["keep", "fold"] | None = None,
    convention: str = "strict",
    pictures: int = 50,
    engine: str = "local",
    address: str | None = None,
    jobs: int | None = None,
    shard: str | None = None,
    watch: GridProgress | None = None,
) -> CrossValidation:
    """Train a network for each fold of the patients, on the other folds; score every patient once, and check labels.

    Folds that are finished are kept, interrupted ones go on. They are processes of their own: in a script, call this
    below `if __name__ == "__main__":`, since they import the script.

    Args:
        config: What to train, with its store; the folds replace its split.
        out: The folder: new, or that of the same cross-validation.
        folds: How many parts the patients are dealt into.
        test: What becomes of patients that the store's source holds back for testing: `keep` leaves them out, `fold`
            deals them like the others. To be given where there are some.
        convention: What empty masks score.
        pictures: How many of the suspected label errors are drawn.
        engine: `local` or `ray`.
        address: Of a Ray cluster.
        jobs: How many folds at a time; by default one for each GPU, or 1.
        shard: `K/N`: do only every Nth fold from the Kth on. N such calls, on as many machines, do all of them;
            whichever finds all folds done brings them together.
        watch: Is told how the folds go.

    Returns:
        The run of each fold, the scores of all patients, and the labels that the networks contradict.

    Examples:
        >>> import adawac
        >>> config = adawac.config.load(adawac.config.TrainConfig, "small.yaml")
        >>> result = adawac.crossval(config, "folds", folds=2, test="fold", pictures=0)
        >>> len(result.runs), result.evaluation.num_patients
        (2, 8)
    """
    out, part = Path(out), share_of(shard)
    checked_convention(convention)
    store = _checked_store(config, folds, test)
    config = override(config, {"data.store": store.path})
    runner = build_engine(engine, address=address, at_once=jobs)
    planned = _plan(config, store, out, folds, test, convention)
    share = planned[part]
    check_jobs([job for job in share if job.state != "done"], here=engine == "local")
    settings = _settings(config, store, folds, test, convention)
    with explained(RunError, f"the folds to {out}", "Give another `out`."):
        make_folder(out)
        _check_folder(out, settings)
    with ExitStack() as held:
        _begin(out, settings, held, shared=shard is not None)
        to_do = [job for job in share if job.state != "done"]
        watch = GridProgress() if watch is None else watch
        watch.planned(share, len(share) - len(to_do))
        outcomes = runner.run(to_do, watch) if to_do else {}
        failures = {job: outcome for job, outcome in outcomes.items() if outcome.status != "done"}
        waiting = sum(job.state != "done" for job in planned) - len(failures)
        with explained(RunError, f"the results to {out}", _ADVICE):
            if shard is not None and not failures and not waiting:
                held.callback(FolderLock(out, patience=_COLLECTING).release)
            results = {} if failures or waiting else _collect(out, store, planned, config, pictures)
    return CrossValidation(
        folder=out,
        runs=tuple(job.folder for job in planned),
        failures=failures,
        skipped=len(share) - len(to_do),
        waiting=waiting,
        **results,
    )


def _begin(out: Path, settings: Mapping[str, Any], held: ExitStack, *, shared: bool) -> None:
    """Lock the folder and write what is done in it; of shards each holds the lock for that moment alone."""
    with explained(RunError, f"the folds to {out}", "Give another `out`."):
        lock = FolderLock(out, _BEGINNING)
    held.callback(lock.release)
    _check_folder(out, settings)  # again: the last holder of the lock may have begun another one
    write_json(out / SETTINGS, settings)
    if shared:
        lock.release()


# -- before the work --------------------------------------------------------------------------------------------------


def _plan(config: TrainConfig, store: Store, out: Path, folds: int, test: str | None, convention: str) -> list[FoldJob]:
    """Return a job for each fold, or refuse a store whose folds could not all be trained and scored."""
    rows = [_row(config, fold, folds, test) for fold in range(folds)]
    check_scorable(store, [(row.config, row.score) for row in rows])
    return [
        FoldJob(**{**vars(job), "name": f"fold-{row.labels['fold']}-{job.name[-8:]}"})
        for row, (job,) in make_jobs(rows, store.path, out, [convention])
    ]


def _row(config: TrainConfig, fold: int, folds: int, test: str | None) -> Row:
    split = f"fold:{fold}/{folds}{'/all' if test == 'fold' else ''}"
    return Row(
        labels={"fold": str(fold)},
        config=override(config, {"data.split": split}),
        seeds=(config.seed,),
        score="val",
    )


def _checked_store(config: TrainConfig, folds: int, test: str | None) -> Store:
    """Open the store, and refuse what could not be cross-validated."""
    if config.data.store is None:
        raise ConfigError("Expected the prepared store of a data set, but got none. Set data.store.")
    if config.validation.select == "best":
        raise ConfigError(
            "Expected validation.select=last, but got best: each network would be chosen by the very fold that scores "
            "it. Set validation.select=last."
        )
    if test not in (None, "keep", "fold"):
        raise ConfigError(f"Expected `test` to be keep or fold, but got {test!r}. Choose one.")
    store = Store(config.data.store.absolute())
    table = store.table
    tested = set(table.patient[table.split == "test"].tolist())
    if tested and test is None:
        raise ConfigError(
            f"Expected a store without a test set, but {len(tested)} patients of {store.path} are for testing. Leave "
            "them out of all folds with `test='keep'`, or deal them into folds, too, with `test='fold'`."
        )
    dealt = labelled(table) & ((table.split != "test") | (test == "fold"))
    patients = set(table.patient[dealt].tolist())
    if not 2 <= folds <= len(patients):
        raise ConfigError(
            f"Expected at least 2 folds, and a labelled patient for each of them, but got {folds} folds and "
            f"{len(patients)} such patients in {store.path}. Change `folds`, or add patients."
        )
    return store


def _settings(config: TrainConfig, store: Store, folds: int, test: str | None, convention: str) -> dict[str, Any]:
    """Return what decides the result, as plain data."""
    return {
        "format_version": FORMAT_VERSION,
        "store": store_digest(store.path),
        "folds": folds,
        "test": test or "none",
        "convention": convention,
        "settings": decisive(to_dict(config), "data.split"),
    }


def _check_folder(out: Path, settings: Mapping[str, Any]) -> None:
    """Refuse a folder of something else, or of a cross-validation with other settings."""
    path = out / SETTINGS
    if not path.is_file():
        if others := [item.name for item in out.iterdir() if item.name != LOCK and not is_temporary(item)]:
            raise RunError(
                f"Expected a new folder, or that of a cross-validation, but {out} holds {min(others)!r}. Give another "
                "`out`."
            )
        return
    if not any((out / "runs").glob(f"*/{INFO}")):  # no fold has begun
        return
    begun, now = _by_path(read_json(path)), _by_path(json.loads(json.dumps(settings)))
    changed = sorted(name for name in {*begun, *now} if begun.get(name) != now.get(name))
    if changed:
        listed = ", ".join(f"{name}={now.get(name)} instead of {begun.get(name)}" for name in changed[:3])
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise RunError(
            f"Expected to go on with the cross-validation in {out}, but it was begun with other settings: got "
            f"{listed}{more}. Give the same ones, or another `out`."
        )


def _by_path(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting by its dotted path; those of the training as `--set` names them."""
    pairs = ((path.removeprefix("settings."), value) for path, value in flatten(settings))
    return {path: value for path, value in pairs if value != {}}


# -- all folds together -----------------------------------------------------------------------------------------------


def _collect(out: Path, store: Store, jobs: Sequence[FoldJob], config: TrainConfig, pictures: int) -> dict[str, Any]:
    """Write what all folds say together, and return it as attributes of `CrossValidation`."""
    from adawac.inference.model_export import save_ensemble
    from adawac.report import write_report

    runs = [Run(job.folder) for job in jobs]
    folders = {case: job.out_of_fold for job in jobs for case in _cases(job)}
    pooled = _write_pooled(out / POOLED, config, runs)
    evaluation = _evaluate(pooled, jobs)
    write_scores(pooled.folder, evaluation.name, evaluation.scores)
    tables = [out / f"scores{ending}" for ending in _ENDINGS]
    for path in tables:
        write_tables(path, [evaluation])
    save_ensemble({f"fold-{number}": run for number, run in enumerate(runs)}, out / "model")
    suspects = find_label_errors(store, pooled, folders)
    listed = write_label_errors(out / LIST, store, suspects, folders, pictures)
    write_label_errors(pooled.folder / LIST, store, suspects, folders, pictures=0)
    shown = [_slice(store, *pair) for pair in with_doubts(suspects[:_SHOWN], folders)]
    write_gallery(pooled.folder, evaluation.name, shown, checkpoint=evaluation.checkpoint)
    report = write_report([Run(pooled.folder), *runs], out / "report.html", overwrite=True)
    files = (*tables, *listed, out / "model", report)
    return {"evaluation": evaluation, "suspects": tuple(suspects), "files": files}


def _slice(store: Store, suspect: LabelError, doubts: Doubts) -> Slice:
    row = int(np.flatnonzero(store.table.id == suspect.id)[0])
    position = int(store.table.position[row])
    return make_slice(store, suspect.id, suspect.case, position, doubts.prediction[position])


def _cases(job: FoldJob) -> list[str]:
    return list(dict.fromkeys(loss.case for loss in read_losses(job.out_of_fold)))


def _write_pooled(folder: Path, config: TrainConfig, runs: Sequence[Run]) -> Run:
    """Write a run folder of all folds: every sample, with the means over the runs that trained on it, by epoch."""
    from adawac.runs.recorder import LoopConfig, MethodSettings

    shutil.rmtree(folder, ignore_errors=True)
    method = MethodSettings(
        name=config.method.name, options=dict(config.method.options), hold_epochs=config.method.hold_epochs
    )
    about = LoopConfig(loop="adawac crossval", method=method, settings=to_dict(config))
    summary = {**config.summary, "folds": len(runs)}
    with RunWriter(folder, about, epochs=config.epochs, summary=summary) as writer:
        writer.write_data(runs[0].data)
        columns = [writer.write_samples(_samples(run)) for run in runs]
        count = len(writer.samples or ())
        for index, metrics in enumerate(zip(*(run.metrics for run in runs), strict=True)):
            epoch = int(metrics[0]["epoch"])
            writer.log_history(epoch, np.arange(count), **_mean_history(runs, columns, count, index))
            writer.log_metrics(epoch, _mean_metrics(metrics))
    return Run(folder)


def _samples(run: Run) -> SampleTable:
    run.require("samples.csv")
    assert run.samples is not None  # it was required
    return run.samples


def _mean_history(
    runs: Sequence[Run], columns: Sequence[npt.NDArray[np.int64]], count: int, index: int
) -> dict[str, npt.NDArray[np.float64]]:
    """Return each field of an epoch for all samples, the mean over the runs that trained on a sample."""
    fields = {}
    for field in FIELDS:
        total, seen = np.zeros(count), np.zeros(count)
        for run, rows in zip(runs, columns, strict=True):
            values = run.history.read(field, slice(index, index + 1))[0, : len(rows)]
            known = np.isfinite(values)
            total[rows[known]] += values[known]
            seen[rows[known]] += 1
        fields[field] = np.where(seen > 0, total / np.maximum(seen, 1), np.nan)
    return fields


def _mean_metrics(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of the numbers that all runs logged for an epoch."""
    shared = [name for name in metrics[0] if name != "epoch" and all(is_number(row.get(name)) for row in metrics)]
    return {name: float(np.mean([row[name] for row in metrics])) for name in shared}


def _evaluate(pooled: Run, jobs: Sequence[FoldJob]) -> Evaluation:
    """Return the scores of all folds as one evaluation."""
    plans = {job: plan_fold(Run(job.folder), job.conventions[0]) for job in jobs}
    check_units({str(job.folder): plan.rules.unit for job, plan in plans.items()})
    first = plans[jobs[0]]
    scores = [score for job in jobs for score in Run(job.folder).scores(job.evaluation)]
    slices = [part for job, plan in plans.items() for part in _slices(plan, job.out_of_fold)]
    return Evaluation(
        run=pooled,
        name=f"out-of-fold-{first.rules.convention}",
        dataset=first.store.dataset,
        part="out-of-fold",
        checkpoint=first.checkpoint,
        convention=first.rules.convention,
        unit=first.rules.unit,
        metrics=("dice", "hd95"),
        scores=scores,
        slices=join_slices(slices),
    )


def _slices(plan: Plan, folder: Path) -> Iterator[SliceScores]:
    for case in plan.cases:
        counts = count_slices(plan.store, case, read_doubts(folder, case).prediction, plan.rules)
        yield slices_of(plan.scored_case(case), counts, plan.store.class_names)
