"""A user's script with every public name, for type checkers alone: `test_types.py` has it checked, nothing runs it.

A line that ends in `# expect error` must be refused.
"""

from pathlib import Path
from typing import assert_type

import torch
from torch import Tensor, nn

import adawac

logits, features = torch.zeros(4, 3, 8, 8), torch.ones(4, 16, 2, 2)
labels, index = torch.zeros(4, 8, 8, dtype=torch.int64), torch.tensor([7, 42])

# -- criteria ---------------------------------------------------------------------------------------------------------

criterion = adawac.AdaWAC(100, eta_beta=1.0, lambda_ac=1.0, rho="rms", ignore_index=255)
step = criterion(logits, labels, features, index)
assert_type(step, adawac.Step)
assert_type(step.loss, Tensor)
assert_type(criterion.weights, adawac.SampleWeights)
assert_type(criterion.weights.beta, Tensor)
assert_type(criterion.objective, adawac.Objective)
criterion([logits, logits], labels, [(1.0, features)], index, views=None, labelled=None).loss.backward()
print(step.los)  # expect error
criterion(logits, labels)  # expect error
criterion(logits, labels, "encoder", index)  # expect error
adawac.AdaWAC(10, rho="rmss")  # expect error
adawac.AdaWAC(10, eta_bta=1.0)  # expect error
adawac.AdaWAC(10, preset="offical")  # expect error
adawac.AdaWAC("10")  # expect error

for preset, objective in adawac.PRESETS.items():
    assert_type(objective, adawac.Objective)
    method = adawac.build_method("trim-ratio", 100, preset, trim_ratio=0.3, eta_beta=None)
    assert_type(method, adawac.Criterion)
    assert_type(method(logits, labels, features, index), adawac.Step)
assert_type(adawac.METHODS["adawac"](10, option_of_another_package=1), adawac.Criterion)
adawac.build_method("adawac", 10, dice="batches")  # expect error
adawac.Objective(rho="rmss")  # expect error


class Halfway(adawac.Criterion):
    """A method of one's own."""

    def weigh(self, batch: adawac.objective.SampleTerms) -> adawac.Weighting:
        """Weigh all samples alike."""
        half = torch.full_like(batch.ell_ce, 0.5)
        return adawac.Weighting(ce=half, ac=half, divisor=batch.count)


assert_type(Halfway(3, lambda_ac=2.0)(logits, labels, features, index).beta, Tensor)
Halfway(3, lambda_ac="2.0")  # expect error

# -- taps -------------------------------------------------------------------------------------------------------------

model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
tap: adawac.EncoderTap = adawac.EncoderTap(model, "1", output="feature_maps.3", grid=(14, 14))
assert_type(tap.pop(), Tensor)
criterion(logits, labels, tap.pop(), index)
several = adawac.EncoderTap(model, {"0": 1.0, "1": 0.5})
assert_type(several.pop(), list[tuple[float, Tensor]])
criterion(logits, labels, several.pop(), index)
print(several.pop().shape)  # expect error
adawac.EncoderTap(model, 3)  # expect error

# -- data -------------------------------------------------------------------------------------------------------------

store = adawac.prepare("nifti", "scans", "stores/mine", spacing=(1.0, 1.0, 0.0), normalisation="z-score")
assert_type(store, adawac.Store)
image, label = store.read(store.cases[0], 0)
image.mean()
assert_type(adawac.Store(Path("stores/mine")).num_classes, int)
views = adawac.ViewConfig(turn=0.0, max_angle=10)
pairs = adawac.PairDataset([(features[0], labels[0])], size=224, config=views)
pairs.set_epoch(3)
batch = next(iter(torch.utils.data.DataLoader(pairs, batch_size=4)))
criterion(model(torch.cat(batch["images"])), torch.cat(batch["labels"]), tap.pop(), batch["index"])
assert_type(adawac.diagnose(store).recommendation.method, str)
adawac.prepare("nifti", "scans", "stores/mine", normalisation="zscore")  # expect error
adawac.ViewConfig(interpolation="linear")  # expect error

# -- training and runs ------------------------------------------------------------------------------------------------

config = adawac.config.TrainConfig(epochs=2, data=adawac.config.DataConfig(store=Path("stores/mine")))
run = adawac.fit(config, "runs/mine")
assert_type(run, adawac.Run)
assert_type(adawac.Run("runs/mine").status in ("finished", "running"), bool)
run.history["beta"].mean()
with adawac.RunRecorder("runs/loop", criterion, samples=["patient 1"] * 100, epochs=2) as recorder:
    print(recorder.end_epoch(1)["loss"])
assert_type(adawac.crossval(config, "cv", folds=3).failures == {}, bool)
adawac.fit("recipe.yaml", "runs/mine")  # expect error

# -- scores, predictions, reports -------------------------------------------------------------------------------------

evaluations = adawac.evaluate(["runs/mine", run], part="val", metrics=("dice", "hd95"))
assert_type([evaluation.to_dict()["part"] for evaluation in evaluations] == ["val"], bool)
scores = adawac.score("truth", ["ours", "theirs"], classes={"liver": 1, "kidneys": (2, 3)})
print([fault.message for fault in scores.faults])
assert_type(adawac.calibrate(run).temperature, float)
assert_type(adawac.predict(run, ["scans"], "labels", tta=True)[0].labels, Path | None)
assert_type(adawac.export_model(run, "model").path, Path)
trained = adawac.load_trained("model")
assert_type(trained.network, nn.Module)
assert_type(trained.class_names, tuple[str, ...])
assert_type(adawac.write_report([run], "report.html"), Path)
adawac.evaluate(run, part="validation")  # expect error
adawac.predict(run, "scans", "labels", format="tiff")  # expect error

# -- modules ----------------------------------------------------------------------------------------------------------

print(adawac.__version__, adawac.export.export_model, adawac.prediction.predict, adawac.trained.load_trained)
print(adawac.algorithm.AdaWAC, adawac.checks, adawac.data, adawac.features.EncoderTap, adawac.losses.consistency)
print(adawac.evaluation, adawac.figures, adawac.inference.Predictor, adawac.methods.Trim, adawac.metrics.dice)
print(adawac.models.build("unet", num_classes=9), adawac.registry.Registry, adawac.report.write_report)
print(adawac.reproduction, adawac.runs.list_runs, adawac.theory, adawac.train.fit, adawac.viewer)
try:
    adawac.Store("nowhere")
except adawac.errors.MissingFileError as error:
    print(error)
