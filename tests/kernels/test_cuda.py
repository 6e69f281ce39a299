"""On a GPU: the same numbers as on the CPU, without waiting for the device, captured, and deterministic."""

import os

import pytest
import torch

import adawac

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
RUNS = [(method, preset) for method in adawac.METHODS for preset in ("paper", "official", "robust")]
SIZE, CLASSES, NUM_SAMPLES = 6, 4, 40


def tensors(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(2 * SIZE, CLASSES, 32, 32, generator=generator, dtype=dtype)
    labels = torch.randint(0, CLASSES, (2 * SIZE, 32, 32), generator=generator)
    labels[1] = labels[SIZE + 1] = 0
    features = torch.randn(logits.shape, generator=generator, dtype=dtype)  # as mean-teacher wants them
    return logits, labels, features, torch.randperm(NUM_SAMPLES, generator=generator)[:SIZE]


def criterion(method, preset, dtype=torch.float64, **options):
    return adawac.build_method(method, NUM_SAMPLES, preset, **{"trim_ratio": 0.4, "aligned": False, **options}).to(
        dtype
    )


def outcome(method, preset, device, dtype, steps=3):
    """Losses, gradients and weights of a few steps, on the CPU."""
    loss = criterion(method, preset, dtype).to(device)
    seen = []
    for step in range(steps):
        logits, labels, features, index = (x.to(device) for x in tensors(dtype, step))
        logits.requires_grad_(), features.requires_grad_()
        out = loss(logits, labels, features, index)
        out.loss.backward()
        seen += [out.loss.detach(), out.beta, logits.grad]
        seen += [features.grad] if features.grad is not None else []
    return [x.cpu() for x in (*seen, loss.weights.beta)]


@pytest.mark.parametrize(("method", "preset"), RUNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_cuda_equals_cpu(method, preset, dtype):
    for ours, expected in zip(
        outcome(method, preset, "cuda", dtype), outcome(method, preset, "cpu", dtype), strict=True
    ):
        torch.testing.assert_close(ours, expected)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize(("method", "preset"), RUNS)
def test_no_step_after_the_first_waits_for_the_device(method, preset):
    loss = criterion(method, preset, torch.float32).cuda()
    logits, labels, features, index = (x.cuda() for x in tensors(torch.bfloat16))
    logits.requires_grad_(), features.requires_grad_()
    loss(logits, labels, features, index).loss.backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss(logits, labels, features, index).loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize(("method", "preset"), RUNS)
def test_captured_equals_eager(method, preset, aligned):
    """A replayed CUDA graph of the criterion moves the weights and gives the gradients that an eager step does."""
    views = torch.eye(2, 3).repeat(2 * SIZE, 1, 1).cuda() + 0.05 if aligned else None
    eager, captured = (criterion(method, preset, torch.float32, aligned=aligned).cuda() for _ in range(2))
    static = [x.cuda() for x in tensors(torch.float32)]
    static[0].requires_grad_(), static[2].requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            captured(*static, views).loss.backward()
    torch.cuda.current_stream().wait_stream(stream)
    captured.load_state_dict(eager.state_dict())  # nothing has happened, the running means included
    graph = torch.cuda.CUDAGraph()
    static[0].grad = static[2].grad = None
    with torch.cuda.graph(graph):
        out = captured(*static, views)
        out.loss.backward()
    for step in range(3):
        fresh = [x.cuda() for x in tensors(torch.float32, step)]
        with torch.no_grad():
            for buffer, new in zip(static, fresh, strict=True):
                buffer.copy_(new)
            static[0].grad.zero_()
        graph.replay()
        fresh[0].requires_grad_(), fresh[2].requires_grad_()
        expected = eager(*fresh, views)
        expected.loss.backward()
        torch.testing.assert_close(out.loss, expected.loss)
        torch.testing.assert_close(static[0].grad, fresh[0].grad)
        torch.testing.assert_close(captured.weights.beta, eager.weights.beta)


def test_deterministic_algorithms_are_enough(monkeypatch):
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        for method, preset in RUNS:
            first, second = (outcome(method, preset, "cuda", torch.float32) for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True)), (method, preset)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_tap_on_a_captured_network_is_read_inside_the_graph():
    torch.manual_seed(0)
    encoder = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3, 2, 1), torch.nn.ReLU())
    model = torch.nn.Sequential(encoder, torch.nn.Upsample(scale_factor=2), torch.nn.Conv2d(8, CLASSES, 3, 1, 1)).cuda()
    tap = adawac.EncoderTap(model, "0")
    loss = adawac.AdaWAC(NUM_SAMPLES).cuda()
    images = torch.randn(2 * SIZE, 1, 32, 32, device="cuda")
    labels, index = (x.cuda() for x in tensors()[1::2])

    def step():
        out = loss(model(images), labels, tap.pop(), index)
        out.loss.backward()
        return out

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    model.zero_grad(set_to_none=True)
    before = loss.weights.log_odds.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    increment = (loss.weights.log_odds - before)[index]
    torch.testing.assert_close(increment, out.ell_ce - out.reg_ac)
    assert model[0][0].weight.grad.abs().sum() > 0
