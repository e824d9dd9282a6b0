"""Runs whose copies tests look at."""

import json
from pathlib import Path

from service.storage.object_storage import Storage
from service.storage.restore import restore
from service.storage.upload import Upload


def write_checkpoint(run_dir: Path, examples: int, model: bytes = b"weights") -> Path:
    """A checkpoint as a run leaves it, but for what is in it."""
    folder = run_dir / "checkpoints" / f"{examples:012d}"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(model)
    (folder / "optimizer.safetensors").write_bytes(b"state of " + model)
    position = {"epoch": examples // 1000, "step": 0, "updates": 0, "examples": examples}
    (folder / "position.json").write_text(json.dumps({"position": position, "spec": {}}))
    return folder


def write_log(run_dir: Path, count: int) -> None:
    """That many lines more."""
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "events.jsonl").open("a") as file:
        for number in range(count):
            file.write(f'{{"seq": {number + 1}}}\n')


def upload(storage: Storage, run_dir: Path, whole: bool = True) -> bool:
    """Bring the copy of the job `job` up to date."""
    return Upload(storage, "job", run_dir, lambda: False).run(whole)


def download(storage: Storage, to: Path) -> dict[str, bytes]:
    """What the copy of the job `job` has."""
    assert restore(storage, "job", to)
    return contents(to)


def contents(run_dir: Path) -> dict[str, bytes]:
    """The files that a copy has, by their names."""
    found = [path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(run_dir)): path.read_bytes() for path in found}


def write_trace(run_dir: Path, number: int, data: bytes = b"trace") -> str:
    """A trace, as a run writes it; its name."""
    name = f"{number:04d}-worker-1-10.json.gz"
    (run_dir / "traces").mkdir(exist_ok=True)
    (run_dir / "traces" / name).write_bytes(data)
    return name
