"""What is sent and what is kept make up what there was, exactly, whatever the vectors and the compressor."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from trainers.optim.compress.build import compressor_of
from trainers.optim.compress.compressor import Compressor
from trainers.optim.compress.config import BLOCK, CompressSpec
from trainers.optim.compress.feedback import ErrorFeedback
from trainers.optim.compress.int8 import Int8
from trainers.optim.compress.sign import Sign
from trainers.optim.compress.top_k import TopK

EVERY = settings(derandomize=True, deadline=None, database=None, max_examples=150)

COMPRESSORS = st.one_of(st.builds(TopK, st.floats(0.001, 1)), st.builds(Sign), st.builds(Int8))

GRID = 2.0**-10
"""Gradients that are multiples of it are added without rounding."""


def decoded(compressor: Compressor, vector: Tensor) -> Tensor:
    return _decoded(compressor, compressor.message(vector), len(vector))


def _decoded(compressor: Compressor, message: Tensor, numel: int) -> Tensor:
    into = torch.full((numel,), 7.0)
    compressor.decode(message, into)
    return into


def feedback(compressor: Compressor, numel: int, gaps: slice = slice(0, 0)) -> ErrorFeedback:
    where = torch.zeros(numel, dtype=torch.bool)
    where[gaps] = True
    return ErrorFeedback(compressor, torch.zeros(numel), where)


@EVERY
@given(
    compressor=COMPRESSORS,
    steps=st.integers(1, 8).flatmap(
        lambda numel: st.lists(st.lists(st.integers(-900, 900), min_size=numel, max_size=numel), min_size=1, max_size=6)
    ),
)
def test_what_was_sent_and_what_is_kept_make_up_the_sum_of_the_gradients_exactly(
    compressor: Compressor, steps: list[list[int]]
) -> None:
    gradients = torch.tensor(steps, dtype=torch.float32) * GRID
    memory = feedback(compressor, gradients.shape[1])
    sent = torch.zeros(gradients.shape[1], dtype=torch.float64)
    for gradient in gradients:
        vector = gradient.clone()
        message = memory.send(vector, slice(0, len(vector)))
        assert torch.equal(_decoded(compressor, message, len(vector)), vector), "the receiver adds what was sent"
        sent += vector
    assert torch.equal(sent + memory.kept.double(), gradients.double().sum(0))


@EVERY
@given(
    compressor=st.one_of(st.builds(TopK, st.floats(0.001, 1)), st.builds(Int8)),
    vector=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
)
@example(compressor=Int8(), vector=[3.3762393121177824e38])  # 64 times a scale of 2^122 would be infinite
@example(compressor=Int8(), vector=[3.4028234663852886e38, 1.0])
def test_top_k_and_int8_lose_nothing_of_any_vector(compressor: Compressor, vector: list[float]) -> None:
    whole = torch.tensor(vector, dtype=torch.float32)
    found = decoded(compressor, whole)
    assert torch.equal(found.double() + (whole - found).double(), whole.double())


@EVERY
@given(share=st.floats(0.001, 1), seed=st.integers(0, 999), numel=st.integers(1, 3000), ties=st.booleans())
def test_top_k_sends_the_largest_and_of_equal_ones_the_first(share: float, seed: int, numel: int, ties: bool) -> None:
    vector = torch.randn(numel, generator=torch.Generator().manual_seed(seed))
    vector = vector.round() if ties else vector
    count = math.ceil(share * numel)
    expected = np.zeros(numel, dtype=np.float32)
    order = np.argsort(-np.abs(vector.numpy()), kind="stable")[:count]
    expected[order] = vector.numpy()[order]
    assert np.array_equal(decoded(TopK(share), vector).numpy(), expected)


@pytest.mark.parametrize("numel", [1, 7, BLOCK, BLOCK + 1, 5 * BLOCK - 3])
def test_sign_and_int8_are_what_their_formulas_say(numel: int) -> None:
    vector = torch.randn(numel, generator=torch.Generator().manual_seed(numel)) * 1e-3
    sign, rounded = torch.zeros(numel), torch.zeros(numel)
    for block in torch.arange(numel).split(BLOCK):
        p = vector[block]
        sign[block] = 2.0 ** math.floor(math.log2(float(p.abs().mean()))) * p.sign()
        s = 2.0 ** math.ceil(math.log2(float(p.abs().max()) / 127))
        rounded[block] = s * (p / s).round()
    assert torch.equal(decoded(Sign(), vector), sign)
    assert torch.equal(decoded(Int8(), vector), rounded)


@pytest.mark.parametrize(
    "compressor", [TopK(0.01), TopK(0.3), TopK(1), Sign(), Int8()], ids=lambda one: type(one).__name__
)
def test_a_message_is_as_long_as_the_spec_says(compressor: Compressor) -> None:
    numel = 100 * BLOCK
    shares = {Sign: CompressSpec(sign=True), Int8: CompressSpec(int8=True)}
    spec = CompressSpec(top_k=compressor.share) if isinstance(compressor, TopK) else shares[type(compressor)]
    message = compressor.message(torch.randn(numel, generator=torch.Generator().manual_seed(0)))
    assert message.dtype == torch.uint8
    assert len(message) == compressor.length(numel) == pytest.approx(spec.bytes_an_element * numel, abs=8)
    assert (
        compressor_of(spec) == compressor
        if isinstance(compressor, TopK)
        else type(compressor_of(spec)) is type(compressor)
    )


@pytest.mark.parametrize("compressor", [TopK(0.5), Sign(), Int8()], ids=lambda one: type(one).__name__)
def test_what_is_no_number_stays_none_and_zeros_stay_zeros(compressor: Compressor) -> None:
    assert torch.equal(decoded(compressor, torch.zeros(70)), torch.zeros(70))
    for bad in (math.nan, math.inf):
        vector = torch.ones(70)
        vector[3] = bad
        assert not decoded(compressor, vector).isfinite().all()


def test_where_no_parameter_lies_nothing_is_sent_nor_kept() -> None:
    memory = feedback(Sign(), 64, slice(50, 64))
    vector = torch.randn(64, generator=torch.Generator().manual_seed(1))
    vector[50:] = 0
    memory.send(vector, slice(0, 64))
    assert not vector[50:].any()
    assert not memory.kept[50:].any()
    assert vector[:50].all()


@pytest.mark.parametrize("fields", [{}, {"top_k": 0.1, "sign": True}, {"sign": False}, {"top_k": 0}])
def test_one_way_is_to_be_given(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"give one of top_k|Input should be"):
        CompressSpec.model_validate(fields)
