"""`hybrid` with columns between real processes: its bits, and columns that move with the workers."""

from pathlib import Path

import pytest

from tests.faults.hybrid.divided import divided_anew
from tests.faults.test_workers import DATA, ended_well, spec
from tests.runtime.runs import finished, start
from tests.runtime.runs import spec as small
from tests.runtime.test_runs import assert_same_bits, on_the_local_transport, parameters
from trainers import ClusterInfo, TrainSpec
from trainers.training.checkpoint import products_of


@pytest.mark.long
@pytest.mark.parametrize("transport", ["shared_memory", "process_group"])
def test_columns_have_the_bits_of_the_local_transport(transport: str, cluster: ClusterInfo, tmp_path: Path) -> None:
    algorithm = {"name": "hybrid", "columns": 2, "scheme": "b"}
    fields = {"algorithm": algorithm, "model": "convnet_two_columns", "transport": transport}
    train = small(workers={"count": 2, "virtual": 2}, **fields)
    run = finished(f"columns-{transport}", train, tmp_path)
    assert run.events[-1].data["state"] == "SUCCEEDED", run.events[-1]
    products = products_of(Path(run.of("checkpoint")[-1]["path"]))
    assert_same_bits(parameters(tmp_path), on_the_local_transport(train, products))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_columns_move_with_the_workers(cluster: ClusterInfo, tmp_path: Path) -> None:
    """A worker is killed and replaced; both columns on one worker, and back."""
    plan = tmp_path / "plan"

    def train(pause_s: float) -> TrainSpec:
        return spec(
            plan,
            model={"name": "faulty:columned", "kwargs": {"plan": str(plan), "pause_s": pause_s}},
            algorithm={"name": "hybrid", "columns": 2},
            data=DATA,
            workers={"count": 2, "virtual": 2},
            optimizer={"name": "momentum", "lr": 0.002, "weight_decay": 0.001},
            clip={"norm": 0.5},
        )

    clean = ended_well(start("faults-columns-clean", train(0), tmp_path / "clean"), 40)
    watched = start("faults-columns", train(0.2), tmp_path)  # it is not to end meanwhile
    divided_anew(watched, plan, clean, (1, 2))
