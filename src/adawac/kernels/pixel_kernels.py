# mypy: ignore-errors
# ruff: noqa: N803
"""Triton kernels that read logits once, in whatever layout they have, and sum up what cross-entropy and Dice need.

Classes are the columns of a tile, pixels its rows. Programs leave the sums of a chunk of pixels in a buffer, which is
added up afterwards: atomic additions would come in another order each time.
"""

import triton
import triton.language as tl


@triton.jit
def _softmax(logits, base, pixel, valid, stride_p, stride_k, classes, BLOCK_K: tl.constexpr):
    """Return a tile's probabilities and their logarithms, zero for classes that do not exist."""
    k = tl.arange(0, BLOCK_K)
    at = base + pixel.to(tl.int64)[:, None] * stride_p + k[None, :] * stride_k
    exists = (k < classes)[None, :]
    x = tl.load(logits + at, mask=valid[:, None] & exists, other=0.0).to(tl.float32)
    largest = tl.max(tl.where(exists, x, float("-inf")), 1)
    off = x - largest[:, None]
    e = tl.where(exists, tl.exp(off), 0.0)
    total = tl.sum(e, 1)
    return at, exists, e / total[:, None], tl.where(exists, off - tl.log(total)[:, None], 0.0)


@triton.jit
def _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE: tl.constexpr):
    """Return a tile's labels, which of them count, and which are none."""
    label = tl.load(labels + row * pixels + pixel, mask=valid, other=0).to(tl.int32)
    counts = valid
    if IGNORE:
        counts = valid & (label != ignored)
    return label, counts, counts & ((label < 0) | (label >= classes))


@triton.jit
def sums(
    logits, labels, partial,
    pixels, chunk, stride_b, stride_k, stride_p, classes, ignored,
    SQUARED: tl.constexpr, IGNORE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Leave, class by class, a chunk's sums of log p, p of the labelled class, p (or p²) of all, and one.

    A label that is no class makes the sum of log p NaN: a loss that quietly left it out would be worse.
    """
    row = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, BLOCK_K)
    logs = tl.zeros((BLOCK_K,), tl.float32)
    overlap = tl.zeros((BLOCK_K,), tl.float32)
    mass = tl.zeros((BLOCK_K,), tl.float32)
    labelled = tl.zeros((BLOCK_K,), tl.float32)
    begin = tl.program_id(0) * chunk
    for start in range(begin, tl.minimum(begin + chunk, pixels), BLOCK_P):
        pixel = start + tl.arange(0, BLOCK_P)
        valid = pixel < tl.minimum(begin + chunk, pixels)
        _, _, p, log_p = _softmax(logits, row * stride_b, pixel, valid, stride_p, stride_k, classes, BLOCK_K)
        label, counts, wrong = _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE)
        hit = counts[:, None] & (label[:, None] == k[None, :])
        logs += tl.sum(tl.where(hit, log_p, tl.where(wrong, float("nan"), 0.0)[:, None]), 0)
        overlap += tl.sum(tl.where(hit, p, 0.0), 0)
        mass += tl.sum(tl.where(counts[:, None], p * p if SQUARED else p, 0.0), 0)
        labelled += tl.sum(tl.where(hit, 1.0, 0.0), 0)
    out = partial + (row * tl.num_programs(0) + tl.program_id(0)) * 4 * classes + k
    tl.store(out, logs, mask=k < classes)
    tl.store(out + classes, overlap, mask=k < classes)
    tl.store(out + 2 * classes, mass, mask=k < classes)
    tl.store(out + 3 * classes, labelled, mask=k < classes)


@triton.jit
def gradient(
    logits, labels, dsums, result,
    pixels, stride_b, stride_k, stride_p, classes, ignored,
    SQUARED: tl.constexpr, IGNORE: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write the logits' gradient, in their layout, from that of the sums: `dsums` is (samples, 4, classes)."""
    row = tl.program_id(1).to(tl.int64)
    pixel = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    valid = pixel < pixels
    k = tl.arange(0, BLOCK_K)
    of_logs = tl.load(dsums + row * 4 * classes + k, mask=k < classes, other=0.0)[None, :]
    of_overlap = tl.load(dsums + (row * 4 + 1) * classes + k, mask=k < classes, other=0.0)[None, :]
    of_mass = tl.load(dsums + (row * 4 + 2) * classes + k, mask=k < classes, other=0.0)[None, :]
    at, exists, p, _ = _softmax(logits, row * stride_b, pixel, valid, stride_p, stride_k, classes, BLOCK_K)
    label, counts, wrong = _labels(labels, row, pixel, valid, pixels, ignored, classes, IGNORE)
    hit = label[:, None] == k[None, :]
    pull = tl.sum(tl.where(hit, of_logs + of_overlap * p, 0.0), 1)[:, None]
    if SQUARED:
        of_mass = 2.0 * of_mass * p
    change = pull * (tl.where(hit, 1.0, 0.0) - p) + p * (of_mass - tl.sum(of_mass * p, 1)[:, None])
    change = tl.where(counts[:, None], change, 0.0)
    change = tl.where(wrong[:, None], float("nan"), change)
    tl.store(result + at, change.to(result.dtype.element_ty), mask=valid[:, None] & exists)
