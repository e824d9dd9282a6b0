"""`hybrid` with restricted connectivity, whose blocks move with the workers, and their projections too."""

from pathlib import Path

import pytest

from tests.faults.hybrid.divided import divided_anew
from tests.faults.test_workers import DATA, ended_well, spec
from tests.runtime.runs import start
from trainers import ClusterInfo, TrainSpec

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
@pytest.mark.parametrize("connect", [{"blocks": 2}, {"blocks": 2, "rank": 3}], ids=["blocks", "projections"])
def test_blocks_move_with_the_workers(cluster: ClusterInfo, tmp_path: Path, connect: dict[str, int]) -> None:
    """As many workers as blocks, fewer, and more."""
    plan = tmp_path / "plan"

    def train(pause_s: float) -> TrainSpec:
        return spec(
            plan,
            model={"name": "faulty:deeper", "kwargs": {"plan": str(plan), "pause_s": pause_s}},
            algorithm={"name": "hybrid", "connect": connect},
            data=DATA,
            workers={"count": 2, "virtual": 5},
            optimizer={"name": "momentum", "lr": 0.002, "weight_decay": 0.001},
            clip={"norm": 0.5},
        )

    name = f"faults-{'-'.join(connect)}"
    clean = ended_well(start(f"{name}-clean", train(0), tmp_path / "clean"), 40)
    watched = start(name, train(0.2), tmp_path)  # it is not to end meanwhile
    found = divided_anew(watched, plan, clean, (1, 3))
    if "rank" in connect:
        assert found["fc2.weight"].shape == (24, 16 + 3)
        assert found["fc2.projection.weight"].shape == (2 * 3, 16)
        return
    for left_out in (found["fc2.weight"][:12, 16:], found["fc2.weight, as it is"][12:, :16]):
        assert not left_out.any()
