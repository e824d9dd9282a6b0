"""Timings: what is timed and how it is summed up. How long anything takes is not tested."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from trainers.cost import timing
from trainers.cost.figures import TimingPlan, slope_words, work
from trainers.cost.memory import free_bytes
from trainers.cost.timing import check_memory, fit, make_pass, num_bytes, time_layers
from trainers.errors import SpecRejected

CPU = torch.device("cpu")
SMALL = TimingPlan(batches=(2, 1, 2), sizes=(8, 32, 16), repeats=3, device="cpu", threads=1)


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device in the place of a GPU, which computes shapes and no numbers."""
    monkeypatch.setattr(timing, "_devices", lambda plan: [CPU, torch.device("meta")])


def test_every_size_is_timed_once_in_order_and_reported() -> None:
    calls: list[tuple[str, float]] = []
    timings = time_layers(SMALL, lambda name, done: calls.append((name, done)))
    assert [curve.layer for curve in timings.curves] == ["convolution", "fully_connected"]
    assert [[each.size for each in curve.timings] for curve in timings.curves] == [[1, 2], [8, 16, 32]]
    assert all(each.mean_s > 0 and each.spread_s >= 0 for curve in timings.curves for each in curve.timings)
    assert calls[0] == ("convolution 1 on cpu", 0.2)
    assert calls[-1] == ("fully connected 32 on cpu", 1.0)
    assert (timings.threads, timings.ratios) == (1, ())


def test_the_mean_is_over_the_repeats_after_the_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by 100 s in each pass of the warm-up, and by 2 s in each that counts."""
    now_s, passes = 0.0, 0

    def counted() -> torch.Tensor:
        nonlocal now_s, passes
        now_s += 100 if passes % (3 + timing.WARM_UPS) < timing.WARM_UPS else 2
        passes += 1
        return torch.zeros(1)

    monkeypatch.setattr(timing, "make_pass", lambda layer, size, device: counted)
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now_s)
    timings = time_layers(SMALL)
    assert passes == 5 * (3 + timing.WARM_UPS)
    assert {(each.mean_s, each.spread_s) for curve in timings.curves for each in curve.timings} == {(2.0, 0.0)}


def test_the_layers_are_the_papers() -> None:
    assert make_pass("convolution", 3, CPU)().shape == (3, 96, 54, 54)
    assert make_pass("fully_connected", 7, CPU)().shape == (1, 7)
    state = torch.random.get_rng_state()
    assert torch.equal(make_pass("convolution", 1, CPU)(), make_pass("convolution", 1, CPU)())
    assert torch.equal(state, torch.random.get_rng_state())


def test_settings_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    seen = []
    monkeypatch.setattr(timing, "wait_for", lambda device: seen.append(torch.backends.cudnn.allow_tf32))
    time_layers(SMALL.model_copy(update={"threads": threads + 1}))
    assert not any(seen)
    assert (torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32) == (threads, tf32)
    assert torch.backends.cudnn.allow_tf32


def test_a_line_by_least_squares() -> None:
    line = fit([(x, 0.5 + 2.0 * x) for x in (1, 2, 4)])
    assert line is not None
    assert (line.slope_s, line.intercept_s, line.r2) == pytest.approx((2.0, 0.5, 1.0))
    bent = fit([(0, 0), (1, 1), (2, 0)])
    assert bent is not None
    assert (bent.slope_s, bent.r2) == pytest.approx((0, 0))
    assert fit([(3, 1.0)]) is None
    assert [work("convolution", 3), work("fully_connected", 3)] == [3, 9]
    assert slope_words("convolution", 0.00645) == "6.45 ms an image"
    assert slope_words("fully_connected", 2e-10) == "0.2 ns a number of the matrix"


@pytest.mark.usefixtures("two_devices")
def test_ratios_are_cpu_over_gpu() -> None:
    timings = time_layers(SMALL)
    assert [(ratio.layer, ratio.device) for ratio in timings.ratios] == [
        ("convolution", "meta"), ("fully_connected", "meta"),
    ]  # fmt: skip
    cpu, gpu = (curve for curve in timings.curves if curve.layer == "convolution")
    ratio = timings.ratios[0]
    assert ratio.by_size == {size: cpu.timings[i].mean_s / gpu.timings[i].mean_s for i, size in enumerate((1, 2))}
    assert cpu.line is not None
    assert gpu.line is not None
    assert ratio.slopes == cpu.line.slope_s / gpu.line.slope_s


@pytest.mark.usefixtures("two_devices")
def test_the_plot_is_a_png_with_a_row_more_for_the_ratios(tmp_path: Path) -> None:
    from trainers.cost.plot import plot_timings

    both = time_layers(SMALL)
    plot_timings(both, tmp_path / "both.png")
    alone = both.model_copy(update={"curves": both.curves[::2], "ratios": ()})
    plot_timings(alone, tmp_path / "alone.png")
    sizes = []
    for name in ("both", "alone"):
        content = (tmp_path / f"{name}.png").read_bytes()
        assert content.startswith(b"\x89PNG")
        sizes.append(int.from_bytes(content[20:24], "big"))  # the height
    assert sizes[0] == 2 * sizes[1]


def test_what_does_not_fit_is_refused_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "free_bytes", lambda device: 10_000_000)
    most = TimingPlan(batches=(1,), sizes=(50_000,), device="cpu")
    with pytest.raises(SpecRejected, match=r"--sizes: 50000 takes 20.0 GB, and cpu has 0.0 GB free; use .* to 1\d{3}"):
        time_layers(most, lambda words, share: pytest.fail("it was timed"))
    with pytest.raises(SpecRejected, match="--batches: 4000 takes"):
        time_layers(TimingPlan(batches=(4000,), sizes=(1,)))
    monkeypatch.undo()
    check_memory(SMALL, CPU)
    assert free_bytes(CPU) > num_bytes("fully_connected", 32) > 32 * 32 * 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecRejected, match="there is no GPU on this machine; use cpu"):
        time_layers(TimingPlan(device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_gpu_is_timed_beside_the_cpu() -> None:
    timings = time_layers(SMALL.model_copy(update={"device": "auto"}))
    assert {curve.device for curve in timings.curves} >= {"cpu", "cuda:0"}
    assert len(timings.ratios) >= 2


def test_sizes_are_positive() -> None:
    for fields in ({"batches": (0,)}, {"sizes": ()}, {"repeats": 0}):
        with pytest.raises(ValidationError):
            TimingPlan.model_validate(fields)
