"""Whatever the data come from: each example once an epoch, and the same bits through three ends and resizes."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import webdataset

from tests.local_runs import LocalRun
from trainers.data.batches import Batch, Dataset, Plan
from trainers.spec import TrainSpec
from trainers.training.checkpoint import read_checkpoint

datasets.disable_progress_bars()
NUM = 30
X, Y = np.random.default_rng(0).normal(size=(NUM, 3)).astype(np.float32), np.arange(NUM) % 3


def text(folder: Path) -> dict[str, object]:
    (folder / "a.txt").write_text("the mill goes round " * 9)
    (folder / "b.txt").write_text("and the water runs down " * 9)
    gpt = {"name": "gpt", "kwargs": {"layers": 1, "heads": 1, "width": 8, "dropout": 0.1}}
    data = {"name": "text", "root": str(folder), "context": 10, "validation": 0.2}
    return {"task": "language_model", "model": gpt, "data": data}


def table(folder: Path, name: str) -> dict[str, object]:
    columns = {
        "a": X[:, 0],
        "b": X[:, 1],
        "kind": [f"kind {i % 4}" for i in range(NUM)],
        "y": [f"class {i}" for i in Y],
    }
    if name == "parquet":
        pq.write_table(pa.table(columns), folder / "t")
    else:
        rows = "\n".join(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))
        (folder / "t").write_text(f"a,b,kind,y\n{rows}\n")
    model = {"name": "tabular", "kwargs": {"hidden": 8, "dropout": 0.2}}
    return {"model": model, "data": {"name": name, "root": str(folder / "t"), "target": "y"}}


def hf(folder: Path) -> dict[str, object]:
    label = datasets.ClassLabel(names=["a", "b", "c"])
    features = datasets.Features({"x": datasets.List(datasets.Value("float32"), length=3), "label": label})
    datasets.Dataset.from_dict({"x": X, "label": Y}, features).save_to_disk(folder / "d")
    return {"data": {"name": f"hf:{folder / 'd'}", "loader_processes": 0}}


def shards(folder: Path) -> dict[str, object]:
    for shard in range(3):
        with webdataset.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for i in range(10 * shard, 10 * shard + 10):
                writer.write({"__key__": f"{i}", "npy": X[i], "cls": int(Y[i])})
    return {"data": {"name": f"webdataset:{folder}", "loader_processes": 0}}


KINDS: dict[str, Callable[[Path], dict[str, object]]] = {
    "text": text,
    "csv": lambda folder: table(folder, "csv"),
    "parquet": lambda folder: table(folder, "parquet"),
    "hf": hf,
    "webdataset": shards,
}


def counted(dataset: Dataset, seen: dict[int, Counter[int]]) -> None:
    """Have a dataset note which examples it gives in which epoch."""
    given = dataset.batches

    def batches(plan: Plan) -> Iterator[Batch]:
        for batch in given(plan):
            seen.setdefault(batch.epoch, Counter()).update(batch.examples.tolist())
            yield batch

    dataset.batches = batches  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_example_once_and_the_same_bits_after_three_ends(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    fields = {"model": "mlp", "batch": 2, "epochs": 2, "seed": 5} | KINDS[kind](tmp_path / "data")

    def spec(workers: int, resume: Path | None = None) -> TrainSpec:
        begin = {"resume": None if resume is None else str(resume)}
        return TrainSpec.model_validate(fields | {"workers": {"count": workers, "virtual": 3}, "checkpoint": begin})

    undisturbed, seen = LocalRun(spec(3), tmp_path / "undisturbed"), dict[int, Counter[int]]()
    for setup in undisturbed.setups:
        counted(setup.dataset, seen)
    last = read_checkpoint(undisturbed.train())
    num = undisturbed.setups[0].dataset.num_train
    assert num > 20
    assert seen == {epoch: Counter(range(num)) for epoch in (0, 1)}

    resume, trained = None, Counter[int]()
    for turn, (workers, steps) in enumerate([(3, 2), (2, 1), (1, 4), (3, None)]):
        run = LocalRun(spec(workers, resume), tmp_path / f"turn-{turn}", limit=steps)
        resume = run.train()
        trained += run.trained
    units = num * undisturbed.setups[0].task.weight_per_example
    assert trained == Counter({0: units, 1: units})
    found = read_checkpoint(resume)
    assert all(torch.equal(found.model[name], last.model[name]) for name in last.model)
