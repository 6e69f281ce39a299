"""One, two and three processes: the same weights, gradients and network, also with batches of different sizes."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

import adawac
from adawac.distributed import gather_rows

STEPS, NUM_SAMPLES = 10, 12
RUNS = [
    (method, preset)
    for method in adawac.METHODS
    for preset in ("paper", "official", "robust")
    # What `robust` adds is about latents and about weights that move; the others train as with `official`.
    if preset != "robust" or adawac.build_method(method, 1, trim_ratio=0.5).uses_latents or method == "reweight-only"
]
IGNORED = 255

pytestmark = pytest.mark.filterwarnings("ignore")  # forking warns about threads, gloo about its own interface


def network() -> nn.Module:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU())
    decoder = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 3, 3, 1, 1))
    return nn.Sequential(encoder, decoder).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images (B, 2 views), labels and rows of a global batch; every third has 4 samples, the others 7."""
    generator = torch.Generator().manual_seed(step)
    size = 4 if step % 3 == 2 else 7
    images = torch.randn(size, 2, 1, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (size, 2, 8, 8), generator=generator)
    labels[torch.rand(size, generator=generator) < 0.4] = 0
    return images, labels, torch.randint(0, NUM_SAMPLES, (size,), generator=generator)


class Whole(nn.Module):
    """Network and criterion in one module, as a LightningModule has them: DDP broadcasts the buffers of both."""

    def __init__(self, model: nn.Module, criterion: nn.Module):
        super().__init__()
        self.model, self.criterion = model, criterion
        self.tap = adawac.EncoderTap(model, "0")

    def forward(self, images, labels, index):
        # The pairs (x1, x2) become all first views, then all second ones.
        logits = self.model(images.transpose(0, 1).flatten(0, 1))
        return self.criterion(logits, labels.transpose(0, 1).flatten(0, 1), self.tap.pop(), index)


def compared(criterion: adawac.Criterion, latents: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Latents, or the predictions that mean-teacher compares: the network is its own teacher here."""
    return logits if criterion.uses_teacher else latents


def partly_labelled(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same batch with samples in all states; every fifth has no label at all, so that some ranks have none."""
    images, labels, index = batch(step)
    generator = torch.Generator().manual_seed(1000 + step)
    labels[torch.rand(labels.shape, generator=generator) < 0.3] = IGNORED
    labels[:, :, 0, 0] %= IGNORED  # every view has a pixel
    labels[torch.rand(len(index), generator=generator) < (1.0 if step % 5 == 4 else 0.5)] = IGNORED
    return images, labels, index


def train(fabric: Fabric, method: str, preset: str, together: bool, ignored: int | None = None):
    options = {"trim_ratio": 0.4, "ignore_index": ignored, "aligned": False}
    criterion = adawac.build_method(method, NUM_SAMPLES, preset, **options).double()
    module = Whole(network(), criterion)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9)
    if together:
        wrapped, optimizer = fabric.setup(module, optimizer)
    else:
        module.tap.remove()
        wrapped, optimizer = fabric.setup(module.model, optimizer)
        tap = adawac.EncoderTap(wrapped, "0")  # looks through Fabric's wrapper and DDP's
    losses = []
    for step in range(STEPS):
        whole = batch(step) if ignored is None else partly_labelled(step)
        local = [part.tensor_split(fabric.world_size)[fabric.global_rank] for part in whole]
        optimizer.zero_grad()
        if together:
            out = wrapped(*local)
        else:
            images, labels, index = local
            logits = wrapped(images.transpose(0, 1).flatten(0, 1))
            features = compared(criterion, tap.pop(), logits)
            out = criterion(logits, labels.transpose(0, 1).flatten(0, 1), features, index)
        fabric.backward(out.loss)
        losses.append(out.loss.item())
        if step < STEPS - 1:
            optimizer.step()
    ranks = fabric.all_gather(criterion.weights.log_odds).view(fabric.world_size, -1)
    return {
        "losses": np.array(losses),
        "gradients": torch.cat([p.grad.flatten() for p in module.model.parameters()]).numpy(),
        "parameters": torch.cat([p.detach().flatten() for p in module.model.parameters()]).numpy(),
        "beta": criterion.weights.beta.numpy(),
        "disagreement": (ranks - ranks[0]).abs().max().item(),
    }


def everything(fabric: Fabric, file: Path):
    torch.set_num_threads(1)
    results = {(*run, False): train(fabric, *run, together=False) for run in RUNS}
    if fabric.world_size != 2:  # three have ranks without a label, too
        results |= {(*run, IGNORED): train(fabric, *run, together=False, ignored=IGNORED) for run in RUNS}
    for preset in ("paper", "official", "robust"):
        results["adawac", preset, True] = train(fabric, "adawac", preset, together=True)
    if fabric.is_global_zero:
        file.write_bytes(pickle.dumps(results))  # a return value would have to fit into the launcher's pipe


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What rank zero has after training with 1, 2 and 3 processes."""
    files = {ranks: tmp_path_factory.mktemp("ranks") / str(ranks) for ranks in (1, 2, 3)}
    for ranks, file in files.items():
        strategy = "ddp_fork" if ranks > 1 else "auto"
        Fabric(accelerator="cpu", devices=ranks, strategy=strategy).launch(everything, file)
    return {ranks: pickle.loads(file.read_bytes()) for ranks, file in files.items()}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("method", "preset"), RUNS)
def test_the_number_of_ranks_does_not_matter(results, method, preset, ranks):
    alone, many = results[1][method, preset, False], results[ranks][method, preset, False]
    for name in alone:
        np.testing.assert_allclose(many[name], alone[name], rtol=1e-7, atol=1e-9, err_msg=name)
    assert many["disagreement"] == 0


@pytest.mark.parametrize(("method", "preset"), RUNS)
def test_the_number_of_ranks_does_not_matter_where_labels_are_missing(results, method, preset):
    alone, many = (results[ranks][method, preset, IGNORED] for ranks in (1, 3))
    for name in alone:
        np.testing.assert_allclose(many[name], alone[name], rtol=1e-7, atol=1e-9, err_msg=name)
    assert many["disagreement"] == 0


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("preset", ["paper", "official", "robust"])
def test_the_criterion_may_be_inside_the_wrapped_module(results, preset, ranks):
    alone, many = results[1]["adawac", preset, False], results[ranks]["adawac", preset, True]
    for name in alone:
        np.testing.assert_allclose(many[name], alone[name], rtol=1e-7, atol=1e-9, err_msg=name)


def test_weights_and_network_moved(results):
    """The comparison above is worth nothing if they stand still."""
    start = torch.cat([parameter.detach().flatten() for parameter in network().parameters()]).numpy()
    for method, preset in RUNS:
        run = results[1][method, preset, False]
        assert abs(run["parameters"] - start).max() > 0.05, (method, preset)
        if method == "adawac":
            assert abs(run["beta"] - 0.5).min() > 1e-3, preset


def weights_of_uneven_ranks(fabric: Fabric):
    """The weights' ascent over gathered rows: rank r brings r + 1 samples, one of them on every rank."""
    weights = adawac.SampleWeights(8)
    rank = fabric.global_rank
    index = torch.tensor([7, *range(rank)])
    (index, ell_ce), rows = gather_rows([index, torch.full((len(index),), float(rank + 1))])
    assert (ell_ce[rows] == rank + 1).all()
    weights.ascend(index, ell_ce, torch.zeros_like(ell_ce), 0.5)
    ranks = fabric.all_gather(weights.log_odds).view(fabric.world_size, -1)
    return ranks.numpy()


def test_uneven_ranks_move_the_same_weights():
    ranks = Fabric(accelerator="cpu", devices=3, strategy="ddp_fork").launch(weights_of_uneven_ranks)
    expected = torch.zeros(8)
    for rank in range(3):
        for i in (7, *range(rank)):
            expected[i] += 0.5 * (rank + 1)
    np.testing.assert_allclose(ranks, expected.expand(3, 8).numpy())
