"""Wrong calls: one message each, that says what to do."""

from functools import partial

import numpy as np
import pytest
import torch

import adawac
from adawac import checks
from adawac.errors import ConfigError, ShapeError


def call(criterion=None, **changes):
    arguments = {
        "logits": torch.randn(4, 3, 8, 8),
        "labels": torch.randint(0, 3, (4, 8, 8)),
        "features": torch.randn(4, 5, 2, 2),
        "index": torch.tensor([0, 5]),
        **changes,
    }
    return (criterion or adawac.AdaWAC(num_samples=6))(**arguments)


def test_a_right_call():
    assert call().loss.isfinite()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": torch.tensor([0, 6])}, r"every index in 0\.\.5.*from 0 to 6.*row.*num_samples=len\(train_set\)"),
        ({"index": torch.tensor([-1, 2])}, r"every index in 0\.\.5.*from -1 to 2"),
        ({"index": torch.tensor([0.0, 1.0])}, r"vector of integers.*float32"),
        ({"index": torch.tensor([[0, 1]])}, r"vector of integers.*\(1, 2\)"),
        ({"index": torch.tensor([], dtype=torch.int64)}, r"vector of integers.*\(0,\)"),
        ({"index": torch.tensor([0, 1, 2])}, r"B or 2B rows of logits for the B = 3.*but got 4.*torch\.cat"),
        ({"labels": torch.full((4, 8, 8), 3)}, r"labels in 0\.\.2 \(K = 3 classes\), but got \[3\].*ignore_index"),
        ({"labels": torch.full((4, 8, 8), -1)}, r"labels in 0\.\.2.*\[-1\]"),
        ({"labels": torch.zeros(4, 8, 8)}, r"integer type.*float32\. Convert them with \.long\(\)"),
        ({"labels": torch.full((4, 8, 8), 0.7)}, r"float32 with values between classes.*\(labels > 0\.5\)\.long\(\)"),
        ({"labels": torch.zeros(4, 1, 8, 8, dtype=torch.int64)}, r"labels \(4, 8, 8\).*\(4, 1, 8, 8\).*labels\[:, 0\]"),
        ({"labels": torch.zeros(4, 32, 32)}, r"quarter-size logits.*Upsample them: .*size=labels\.shape.*'bilinear'"),
        ({"labels": torch.zeros(4, 16, 16)}, r"half-size logits"),
        ({"labels": torch.zeros(4, 20, 20)}, r"smaller logits"),
        ({"labels": torch.zeros(4, 4, 4)}, r"a label map for each row of the logits"),
        ({"labels": torch.zeros(2, 32, 32)}, r"a label map for each row of the logits"),
        ({"labels": torch.zeros(4, 3, 8, 8)}, r"labels \(4, 8, 8\).*not one-hot.*labels\.argmax\(1\)"),
        ({"labels": torch.zeros(4, 8, 8, dtype=torch.uint16)}, r"integer type.*uint16.*\.long\(\)"),
        ({"labels": [torch.zeros(2, 8, 8).long()] * 2}, r"1 logits, 2 label maps.*torch\.cat\(batch\[\"labels\"\]\)"),
        ({"labels": torch.zeros(2, 8, 8, dtype=torch.int64)}, r"labels \(4, 8, 8\).*\(2, 8, 8\)"),
        ({"logits": torch.randn(4, 1, 8, 8)}, r"K ≥ 2.*background and foreground"),
        ({"logits": torch.zeros(4, 3, 8, 8, dtype=torch.int64)}, r"floating type.*int64"),
        ({"logits": torch.randn(4, 2, 3, 8, 8)}, r"labels \(4, 3, 8, 8\).*logits\.unbind\(1\)"),
        ({"features": None}, r"AdaWAC compares them, but got none.*tap\.pop\(\)"),
        ({"features": []}, "but got none"),
        ({"features": torch.randn(2, 5, 2, 2)}, r"latents of 4 rows.*\(2, 5, 2, 2\).*Both views"),
        ({"features": torch.randn(8, 5, 2, 2)}, r"latents of 4 rows.*\(8, 5, 2, 2\).*no_grad"),
        ({"logits": [torch.randn(4, 3, 8, 8)] * 2, "labels": [torch.zeros(4, 8, 8).long()]}, "2 logits, 1 label maps"),
    ],
)
def test_wrong_calls(changes, message):
    with pytest.raises(ShapeError, match=message):
        call(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"index": [0, 5]}, r"vector of integers.*a list of 2 int"),
        ({"index": ["case 1", "case 2"]}, r"a list of 2 str.*\{name: row for row, name in enumerate\(names\)\}"),
        ({"index": None}, r"vector of integers.*NoneType"),
        ({"labels": torch.zeros(4, 8, 8).long().numpy()}, r"labels to be a tensor.*ndarray"),
        ({"logits": {"out": torch.randn(4, 3, 8, 8)}}, r"logits to be a tensor.*keys \['out'\].*output\['out'\]"),
        ({"logits": None}, r"logits to be a tensor.*NoneType"),
        ({"features": (torch.randn(2, 5), torch.randn(2, 5))}, r"one tensor.*a tuple of 2 Tensor.*torch\.cat"),
        ({"features": {"encoder": torch.randn(4, 5)}}, r"one tensor.*keys \['encoder'\]"),
    ],
)
def test_wrong_types(changes, message):
    """Straight to the checks: the tests' own of all annotations would come first."""
    with pytest.raises(ShapeError, match=message):
        call(partial(checks.batch, adawac.AdaWAC(num_samples=6), views=None, values=True), **changes)


def test_supervision_weights_must_match():
    criterion = adawac.AdaWAC(num_samples=6, supervision=(1.0, 0.5, 0.25))
    with pytest.raises(ShapeError, match=r"2 logits.*weights \(1.0, 0.5, 0.25\)"):
        call(criterion, logits=[torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)])


@pytest.mark.parametrize("weights", [1.0, "a", (0.0,), (1.0, -0.5), (1.0, float("nan")), ()])
def test_supervision_weights_must_have_a_sum(weights):
    with pytest.raises(ConfigError, match=r"supervision: expected (a list, each a number|at least one weight above 0)"):
        adawac.AdaWAC(num_samples=6, supervision=weights)


def test_a_resolution_may_weigh_nothing():
    criterion = adawac.AdaWAC(num_samples=6, supervision=[1, 0])
    assert call(criterion, logits=[torch.randn(4, 3, 8, 8), torch.randn(4, 3, 4, 4)]).loss.isfinite()


def test_aligned_needs_maps_and_views():
    criterion = adawac.AdaWAC(num_samples=6, aligned=True)
    with pytest.raises(ShapeError, match=r"\(4, 2, 3\).*but got none.*aligned=False"):
        call(criterion)
    with pytest.raises(ShapeError, match=r"tokens' grid"):
        call(criterion, features=torch.randn(4, 9, 5), views=torch.eye(2, 3).expand(4, 2, 3))


def test_pair_needs_both_views():
    criterion = adawac.build_method("pair", 6)
    with pytest.raises(ShapeError, match=r"both views of 2 samples, but got 2.*baseline"):
        call(criterion, logits=torch.randn(2, 3, 8, 8), labels=torch.zeros(2, 8, 8).long(), features=None)


def test_ignored_labels_are_allowed():
    labels = torch.randint(0, 3, (4, 8, 8))
    labels[0, 0] = 255
    assert call(adawac.AdaWAC(num_samples=6, ignore_index=255), labels=labels).loss.isfinite()


def test_two_views_are_no_resolutions():
    """As a list they would be deep supervision, with two thirds for the first view."""
    logits, labels = torch.randn(4, 3, 8, 8), torch.randint(0, 3, (4, 8, 8))
    with pytest.raises(ShapeError, match=r"two of the same size, \(2, 3, 8, 8\).*torch\.cat\(logits\)"):
        call(logits=list(logits.chunk(2)), labels=list(labels.chunk(2)))
    assert call(logits=[logits[:2], logits[2:]], labels=labels[:2]).loss.isfinite()  # a second output, one label map


def test_an_ignored_label_that_its_type_cannot_hold_ignores_nothing():
    labels = torch.full((4, 8, 8), 255, dtype=torch.uint8)
    with pytest.raises(ShapeError, match=r"but got \[255\]"):
        call(adawac.AdaWAC(num_samples=6, ignore_index=-1), labels=labels)


@pytest.mark.parametrize("elsewhere", ["labels", "features", "index", "criterion"])
def test_all_must_be_on_one_device(elsewhere):
    criterion = adawac.AdaWAC(num_samples=6)
    if elsewhere == "criterion":
        criterion.to("meta")
        changes = {}
    else:
        shape = {"labels": (4, 8, 8), "features": (4, 5), "index": (2,)}[elsewhere]
        kind = torch.float32 if elsewhere == "features" else torch.int64
        changes = {elsewhere: torch.zeros(shape, dtype=kind, device="meta")}
    name = "latents" if elsewhere == "features" else elsewhere
    with pytest.raises(ShapeError, match=rf"{name} on meta.*criterion\.to\(device\)"):
        call(criterion, **changes)


def test_values_are_checked_in_every_step_on_the_cpu():
    criterion = adawac.AdaWAC(num_samples=6)
    call(criterion)
    with pytest.raises(ShapeError, match=r"every index in 0\.\.5"):
        call(criterion, index=torch.tensor([0, 6]))
    with pytest.raises(ShapeError, match=r"labels in 0\.\.2"):
        call(criterion, labels=torch.full((4, 8, 8), 255))


def test_elsewhere_values_are_checked_in_the_first_step_only_unless_asked():
    """A meta tensor has no values: whoever looks at them fails."""

    def step(criterion):
        shapes = {"logits": (4, 3, 8, 8), "features": (4, 5)}
        whole = {"labels": (4, 8, 8), "index": (2,)}
        return criterion(
            **{name: torch.zeros(shape, device="meta") for name, shape in shapes.items()},
            **{name: torch.zeros(shape, dtype=torch.int64, device="meta") for name, shape in whole.items()},
        )

    for validate in (False, True):
        with pytest.raises(RuntimeError, match="meta"):
            step(adawac.AdaWAC(num_samples=6, validate=validate).to("meta"))
        criterion = adawac.AdaWAC(num_samples=6, validate=validate)
        call(criterion)  # the first step
        criterion.to("meta")
        if validate:
            with pytest.raises(RuntimeError, match="meta"):
                step(criterion)
        else:
            assert step(criterion).beta.shape == (2,)


@pytest.mark.parametrize(
    ("index", "advice"),
    [
        ([0, 5], r"torch\.as_tensor\(index, dtype=torch\.int64\)"),
        (np.array([0, 5]), r"torch\.as_tensor\(index, dtype=torch\.int64\)"),
        (torch.tensor([0, 5], dtype=torch.uint8), r"torch\.as_tensor\(index, dtype=torch\.int64\)"),
        (torch.tensor([[0], [5]]), r"\.flatten\(\)"),
        (torch.tensor([], dtype=torch.int64), r"on every rank, one sample at least"),
        (torch.tensor([0.0, 5.0]), r"row, 0\.\.5, from your data set's __getitem__"),
        (["a", "b"], r"number samples that have names"),
    ],
)
def test_each_wrong_index_has_its_own_advice(index, advice):
    with pytest.raises(ShapeError, match=rf"vector of integers.*{advice}"):
        call(partial(checks.batch, adawac.AdaWAC(num_samples=6), views=None, values=True), index=index)


@pytest.mark.parametrize("features", [adawac.EncoderTap(torch.nn.Sequential(torch.nn.ReLU()), "0"), dict.pop])
def test_a_tap_that_was_not_popped_is_explained(features):
    with pytest.raises(ShapeError, match=r"latents of both views.*but got <class.*Give tap\.pop\(\)"):
        call(partial(checks.batch, adawac.AdaWAC(num_samples=6), views=None, values=True), features=features)


def test_an_index_of_both_views_is_explained():
    with pytest.raises(ShapeError, match=r"latents of 8 rows.*\(4, 5, 2, 2\).*index names both views.*give it once"):
        call(index=torch.tensor([0, 5, 0, 5]))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_probabilities_are_refused(kind):
    """They train, badly: a second softmax flattens them."""
    logits = 4 * torch.randn(4, 3, 8, 8)
    with pytest.raises(ShapeError, match=r"Expected logits, but got probabilities \(4, 3, 8, 8\).*softmax"):
        call(logits=logits.softmax(1).to(kind))
    with pytest.raises(ShapeError, match=r"Expected logits, but got probabilities \(4, 3, 8, 8\).*sigmoid"):
        call(logits=logits.sigmoid().to(kind))
    for fine in (
        logits.log_softmax(1),
        torch.zeros_like(logits),
        logits.abs(),
        0.1 * logits.sigmoid(),  # as of a network that has hardly begun to learn
        logits - logits.mean(1, True) + 1 / 3,
    ):
        assert call(logits=fine.to(kind)).loss.isfinite()


@pytest.mark.parametrize("activation", [torch.softmax, lambda logits, axis: logits.sigmoid()])
def test_probabilities_are_refused_in_every_step_on_the_cpu(activation):
    """A network that was left in evaluation mode may return them from the second epoch on."""
    criterion, logits = adawac.AdaWAC(num_samples=6), 4 * torch.randn(4, 3, 40, 40)
    labels = torch.randint(0, 3, (4, 40, 40))
    call(criterion, logits=logits, labels=labels)
    call(criterion, logits=logits, labels=labels)
    with pytest.raises(ShapeError, match="got probabilities"):
        call(criterion, logits=activation(logits, 1), labels=labels)


@pytest.mark.parametrize("last", [torch.nn.Softmax(1), torch.nn.Sigmoid()])
@pytest.mark.parametrize(
    "views",
    [
        lambda net, x: net(x),
        lambda net, x: torch.cat([net(x[:2]), net(x[2:])]),
        lambda net, x: net(x).half().float().permute(0, 1, 3, 2).contiguous(),
        lambda net, x: [net(x), net(x)[..., ::2, ::2]],
        lambda net, x: torch.stack([net(x)], 1).unbind(1),
    ],
)
def test_an_activation_at_the_networks_end_is_seen_without_a_look_at_values(last, views):
    """On a device, where looking would make the host wait: a meta tensor has no values."""
    network, criterion = torch.nn.Conv2d(1, 3, 1), adawac.AdaWAC(num_samples=6)
    torch.nn.init.constant_(network.bias, -1)  # or the draw may look like probabilities
    x = torch.zeros(4, 1, 8, 8)
    call(criterion, logits=views(network, x))  # the first step
    criterion.to("meta"), network.to("meta")
    on_meta = {
        "labels": torch.zeros(4, 8, 8, device="meta").long(),
        "features": torch.zeros(4, 5, device="meta"),
        "index": torch.zeros(2, device="meta").long(),
    }
    call(criterion, logits=views(network, x.to("meta")), **on_meta)
    with pytest.raises(ShapeError, match=f"got probabilities.*{type(last).__name__.lower()}"):
        call(criterion, logits=views(torch.nn.Sequential(network, last), x.to("meta")), **on_meta)


def test_elsewhere_values_are_looked_at_again_now_and_then():
    objective = adawac.Objective()
    assert [call for call in range(600) if checks.due(objective, call)] == [0, 3, 15, 63, 256, 512]
    assert all(checks.due(adawac.Objective(validate=True), call) for call in range(9))


def test_gates_within_a_network_are_no_activation_at_its_end():
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    assert call(logits=x * x.sigmoid()).loss.isfinite()


def test_training_mode_without_gradients_is_refused():
    """It would move the weights by a validation's losses, to the rows of training samples."""
    for method in ("adawac", "baseline"):
        criterion = adawac.build_method(method, 6)
        for off in (torch.no_grad, torch.inference_mode):
            with off(), pytest.raises(ConfigError, match=r"training mode.*no_grad.*criterion\.eval\(\)"):
                call(criterion)
        assert (criterion.weights.log_odds == 0).all()
        with torch.no_grad():
            assert call(criterion.eval()).loss.isfinite()


class Halves(torch.nn.Module):
    """An encoder and a decoder."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.ReLU(inplace=True))
        self.decoder = torch.nn.Conv2d(4, 3, 1)

    def forward(self, x):
        return self.decoder(self.encoder(x))


def test_a_stale_latent_beside_one_supervised_view_is_refused():
    model = Halves()
    tap = adawac.EncoderTap(model, "encoder.0")
    x1, x2, labels = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.zeros(2, 8, 8).long()
    criterion = adawac.AdaWAC(num_samples=6)

    def step(logits):
        return call(criterion, logits=logits, labels=labels, features=tap.pop())

    for _ in range(2):
        model(x2)  # to look at a prediction, without no_grad
        with pytest.raises(ShapeError, match=r"first view's latent.*tap\.clear\(\)"):
            step(model(x1))
        logits = model(x1)
        tap.encode(model, x2)
        assert step(logits).loss.isfinite()
        logits = model(x1)
        with torch.no_grad():
            tap.encode(model, x2)
        assert step(logits).loss.isfinite()
        z1, _ = model.encoder(x1), model.encoder(x2)
        assert step(model.decoder(z1)).loss.isfinite()
        projected = torch.nn.Linear(8, 2)(tap_both(tap, model, x1, x2))
        assert call(criterion, logits=model(x1), labels=labels, features=projected).loss.isfinite()
        tap.clear()


def tap_both(tap, model, *views):
    for view in views:
        model(view)
    return tap.pop()


def test_latents_of_tokens_beside_one_supervised_view():
    encoder = torch.nn.Linear(3, 5)
    model = torch.nn.Sequential(encoder, torch.nn.Linear(5, 3))
    tap = adawac.EncoderTap(model, "0", grid=(2, 2))
    stale, x1, x2 = torch.randn(3, 2, 4, 3)
    for views, fits in (((x1, x2), True), ((stale, x1), False)):
        outputs = [model(view).transpose(1, 2).unflatten(2, (2, 2)) for view in views]
        arguments = {"logits": outputs[0 if fits else 1], "labels": torch.zeros(2, 2, 2).long(), "features": tap.pop()}
        if fits:
            assert call(**arguments).loss.isfinite()
        else:
            with pytest.raises(ShapeError, match="first view's latent"):
                call(**arguments)


def test_moves_that_are_left_out_are_told_once(caplog):
    criterion = adawac.AdaWAC(num_samples=6)
    call(criterion)
    assert caplog.text == ""
    for _ in range(4):
        call(criterion, logits=torch.full((4, 3, 8, 8), torch.nan))
    assert caplog.text.count("2 moves of the weights were left out") == 1
    assert len(caplog.records) == 1
