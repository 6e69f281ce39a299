"""What each family of our kernels gives: a captured training step with all of them, and without one at a time.

    python -m benchmarks.kernel_shares STORE --model unet          # some 60 s on an H200
    python -m benchmarks.kernel_shares STORE --model transunet     # some 110 s

AdaWAC, preset `official`, batch 24, 224×224, bf16, as in `benchmarks.training`. Without a family, torch's own functions
do its work. "all on" is measured at the beginning, halfway and at the end, which shows how far to trust the others. The
last rows leave out several: all families that gave less than 1 % (`small ones`), what `hardware.fused=false` leaves
out, and all kernels. Writes benchmarks/results/kernel-shares-MODEL.json, anew after each measurement.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import timm.layers
import timm.models.vision_transformer as timm_attention
import torch
import torch.nn.functional as F
from torch import nn

from adawac import losses
from adawac.config import TrainConfig, override
from adawac.kernels import blocks, convolutions, fuse, norms, pixels
from adawac.models import transunet
from adawac.runs.recorder import EpochRecord
from adawac.train import setup
from adawac.train import step as train_step
from benchmarks.result_files import RESULTS, write_result
from benchmarks.training import BASE

WARMUP = 6  # steps: two are eager, in the third the step is captured
BLOCKS, SECONDS = 5, 0.4  # that are timed, and how long each takes
SMALL = 1.0  # percent


def unfused(*classes: type) -> list[Any]:
    """Let modules of these classes stay what they are."""
    of_norms = {kind: kind for kind in classes if kind in blocks.NORMS}
    of_blocks = {kind: (kind, lambda block: True) for kind in classes if kind in blocks.BLOCKS}
    assert len(of_norms) + len(of_blocks) == len(classes)
    return [mock.patch.dict(blocks.NORMS, of_norms), mock.patch.dict(blocks.BLOCKS, of_blocks)]


def no(*args: Any, **options: Any) -> None:
    """Say no, and do nothing; a mock's `return_value` would keep the tensors that it is asked about."""


def never(*names: tuple[Any, str]) -> list[Any]:
    """Let predicates say no where they are asked for."""
    return [mock.patch.object(place, name, no) for place, name in names]


def activated_apart(norm, x, act, residual=None):
    """What blocks do where the kernel adds nothing and cuts nothing."""
    y = norm(x)
    return act(y if residual is None else y + residual)


def residual_apart(norm, x, act, residual=None):
    """What blocks do where the kernel adds nothing."""
    return norms.activated(norm, x, act) if residual is None else act(norm(x) + residual)


class NormThenAct(blocks.GroupNormAct):
    """A group norm on our kernels whose ReLU is torch's."""

    def forward(self, x):
        return self.act(self.fused(x))


def hidden(self, x, seed=None):
    """The hidden layer of an MLP by torch."""
    return self.drop1(self.act(self.fc1(x)))


def attended(self, x):
    """What tokens attend to, by torch."""
    query, key, value = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind()
    dropout = self.attn_drop.p if self.training else 0.0
    found = F.scaled_dot_product_attention(self.q_norm(query), self.k_norm(key), value, dropout_p=dropout)
    return found.transpose(1, 2).flatten(2)


def standard(self, dtype=None):
    """A standardised weight by torch."""
    rows = self.weight.reshape(1, self.out_channels, -1)
    result = F.batch_norm(rows, None, None, training=True, momentum=0.0, eps=self.eps).reshape_as(self.weight)
    result = result.to(dtype or result.dtype, memory_format=torch.channels_last)
    result.is_standardised = True
    return result


UNCAST = [mock.patch.object(train_step, "CastWeights", no)]
UNFUSED = [*unfused(*blocks.NORMS, *blocks.BLOCKS), *UNCAST]  # as with hardware.fused=false
BOTH: dict[str, list[Any]] = {
    "batch_norm": unfused(nn.BatchNorm2d),
    "norm_activations": [
        mock.patch.object(blocks, "activated", activated_apart),
        mock.patch.dict(blocks.NORMS, {timm.layers.GroupNormAct: NormThenAct}),
    ],
    "norm_residuals": [mock.patch.object(blocks, "activated", residual_apart)],
    "convolve_gray": never((blocks, "can_convolve_gray"), (convolutions, "can_convolve_gray")),
    "narrow_convolutions": never((convolutions.Conv2d, "fits")),
    "max_pool": unfused(nn.MaxPool2d),
    "enlarge": never((blocks, "can_enlarge")),
    "class_sums": never((losses, "can_sum")),
    "warp": never((pixels, "can_warp")),
    "weight_cast": UNCAST,
}
TRANSUNET: dict[str, list[Any]] = {
    "group_norm": unfused(nn.GroupNorm, timm.layers.GroupNormAct),
    "standardised": [mock.patch.object(blocks.StdConv2d, "standard", standard)],
    # And with it the grey first convolution.
    "StdConv2d": unfused(timm.layers.StdConv2d, transunet.Encoder),
    "add_and_normalise": unfused(timm_attention.Block),  # and with it attention, to which timm's block gives masks
    "gelu_and_drop": [mock.patch.object(blocks.Mlp, "_hidden", hidden)],
    "split_heads": [mock.patch.object(blocks.Attention, "_attended", attended)],
    "Attention": unfused(timm_attention.Attention),
    "token_biases": [mock.patch.object(blocks, "linear", lambda layer, x: (layer(x), None))],
    "tokens": unfused(*blocks.TRANSFORMERS),
}
FAMILIES = {"unet": BOTH, "transunet": BOTH | TRANSUNET}


@contextmanager
def fused(network: nn.Module, patches: Sequence[Any]) -> Iterator[None]:
    """Fuse a network with some of the kernels off; afterwards it is what it was."""
    classes = {module: type(module) for module in network.modules()}
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        fuse(network)
        try:
            yield
        finally:
            for module, kind in classes.items():
                module.__class__ = kind


def prepared(config: TrainConfig) -> setup.Trainer:
    """Return all that a run consists of, its network not fused."""
    with mock.patch.object(setup, "fuse", no):
        trainer = setup.set_up(config)
    EpochRecord(trainer.criterion)
    return trainer


def timed(trainer: setup.Trainer, patches: Sequence[Any], wait: Callable[[], None] = torch.cuda.synchronize) -> dict:
    """Return the time of a step, captured anew with some of the kernels off."""
    size = trainer.config.data.batch_size
    with fused(trainer.network, patches):
        step = train_step.TrainStep(trainer)
        batches = [(rows, 1, number) for number, rows in enumerate(step.inputs(1, 0)) if len(rows) == size]

        def seconds(steps: int) -> float:
            wait()
            started = time.perf_counter()
            for number in range(steps):
                step(*batches[number % len(batches)])
            wait()
            return (time.perf_counter() - started) / steps

        seconds(WARMUP)
        steps = max(5, round(SECONDS / seconds(5)))
        found = [1000 * seconds(steps) for _ in range(BLOCKS)]
    milliseconds = statistics.median(found)
    return {
        "step_ms": milliseconds,
        "slices_per_second": 1000 * size / milliseconds,
        "blocks_ms": [round(block, 3) for block in found],
        "reason": step.reason,  # why it is not captured: None
    }


def measured(trainer: setup.Trainer, patches: Sequence[Any]) -> dict:
    """Return the time of a step and the memory that it takes; or why it does not run."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    try:
        return timed(trainer, patches) | {"peak_gib": torch.cuda.max_memory_allocated() / 2**30}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def compare(found: dict[str, dict]) -> dict[str, float]:
    """Note in each measurement how much of its step the kernels that it lacks would save; return the noise."""
    whole = [result["step_ms"] for name, result in found.items() if name.startswith("all on") and "step_ms" in result]
    if not whole:
        return {}
    usual = statistics.median(whole)
    for result in found.values():
        if "step_ms" in result:
            result["saves_percent"] = round(100 * (1 - usual / result["step_ms"]), 2)
    return {"step_ms": usual, "noise_percent": round(100 * (max(whole) / min(whole) - 1), 2)}


def variants(families: dict[str, list[Any]], found: dict[str, dict]) -> Iterator[tuple[str, list[Any]]]:
    """Yield what is measured, each with what switches kernels off; the last depend on what was found before."""
    yield "all on", []
    for number, (name, patches) in enumerate(families.items(), 1):
        yield name, patches
        if number == len(families) // 2:
            yield "all on, halfway", []
    small = [name for name in families if found[name].get("saves_percent", SMALL) < SMALL]
    if small:
        yield f"small ones: {', '.join(small)}", [patch for name in small for patch in families[name]]
    yield "hardware.fused=false", UNFUSED
    yield "all off", [*UNFUSED, *families["class_sums"], *families["warp"]]
    yield "all on, at the end", []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("--model", choices=FAMILIES, default="unet")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    trainer = prepared(override(TrainConfig(), {"data.store": args.store, "model.name": args.model, **BASE}))
    result = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "model": args.model}
    found: dict[str, dict] = {}
    for name, patches in variants(FAMILIES[args.model], found):
        started = time.perf_counter()
        found[name] = measured(trainer, patches)
        noise = compare(found)
        print(f"{args.model} {name} ({time.perf_counter() - started:.1f} s): {found[name]}", flush=True)
        write_result(args.out / f"kernel-shares-{args.model}.json", {**result, **noise, "measured": found})


if __name__ == "__main__":
    main()
