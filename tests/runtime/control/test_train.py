"""`train` from Python."""

from pathlib import Path

import pytest
import ray

from trainers import TrainSpec, train


def test_the_ray_that_it_starts_has_room_for_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the machine's two CPUs, three workers waited for ever and nothing said so."""
    asked: list[int] = []

    def embedded(at_least: int) -> None:
        asked.append(at_least)
        raise InterruptedError

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("trainers.runtime.api.embedded", embedded)
    spec = TrainSpec.model_validate({"algorithm": "downpour", "workers": 5, "ps": {"shards": 2, "cpus": 0.5}})
    with pytest.raises(InterruptedError):
        train(spec, tmp_path / "run")
    assert asked == [6]
