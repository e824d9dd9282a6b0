"""The examples of tasks, in small."""

from pathlib import Path

import pytest

from service import read_spec_file
from tests.local_runs import LocalRun
from trainers import user_code
from trainers.models.module_buffers import in_common
from trainers.tasks.measures import Measure
from trainers.training.checkpoint import read_checkpoint

ROOT = Path(__file__).parents[2]
SMALL = ["epochs=1", "data.limit=48"]


@pytest.mark.parametrize(
    ("name", "sets", "metric"),
    [
        ("scenes/segmentation", ["model.kwargs.width=4", "data.root=nowhere"], "mean_iou"),
        ("scenes/detection", ["data.loader_processes=0", "data.root=nowhere", "data.limit=4"], "map"),
        ("sentences/job", ["data.loader_processes=0"], "accuracy"),
        ("masked_words/job", ["model.kwargs.num_hidden_layers=1", "model.kwargs.hidden_size=16"], "perplexity"),
    ],
)
def test_an_example_trains_and_is_measured(name: str, sets: list[str], metric: str, tmp_path: Path) -> None:
    spec = read_spec_file(ROOT / "examples" / f"{name}.yaml", SMALL + sets).resolved(ROOT)
    with user_code.on_path(spec.code):
        run = LocalRun(spec.train, tmp_path / "run")
        kept, setup = read_checkpoint(run.train()), run.setups[0]
    found: dict[str, Measure] = {}
    params = setup.layout.flatten(kept.model)
    with setup.replica.evaluating(params, in_common(kept.buffers)) as model:
        for batch in setup.dataset.test_batches(25):
            more = setup.task.metrics(model, batch.data)
            found = {key: found[key] + value if key in found else value for key, value in more.items()}
    assert 0 <= found[metric].value < 257
