"""What callers see of a storage: how a copy stands, and an answer that says what to do where one is needed and away."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from api import CannotServe
from api.cli.context import ServeOptions
from deploy.main import open_mirror
from service import Mirror, Storage
from tests.api.conftest import Service, eventually
from tests.service.fakes import whole_run
from tests.service.storage.copies import write_checkpoint
from trainers.events import State


@pytest.fixture
def service(serve: Callable[..., Service], tmp_path: Path) -> Service:
    return serve(mirror=Mirror(Storage.open(f"file://{tmp_path}/copies"), tmp_path / "runs", look_s=0.02))


def remove(folder: Path) -> None:
    """As `rm -r`, again where the service has written the last of a run meanwhile."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    eventually(is_gone)


def newest_manifest(copy: Path) -> str:
    """The text of the newest manifest of a copy, or an empty one where there is none, or it has just been replaced."""
    try:
        return max((copy / "manifests").glob("*.json")).read_text()
    except (ValueError, FileNotFoundError):
        return ""


def test_a_job_whose_files_are_gone_is_handed_out_or_says_why_not(service: Service, tmp_path: Path) -> None:
    service.runs.script = lambda run: (write_checkpoint(run.run_dir, 1000), whole_run(run))[1]
    job = service.client.submit({"epochs": 1})
    where = f"/v1/jobs/{job.id}/checkpoints/000000001000/model.safetensors"
    eventually(lambda: service.client.get(job.id).state is State.SUCCEEDED)  # the first copies are of a run under way
    eventually(lambda: "000000001000/model" in newest_manifest(tmp_path / "copies" / job.id))
    eventually(lambda: service.client.get(job.id).storage == f"copied to file://{tmp_path}/copies/{job.id}")
    remove(tmp_path / "runs" / job.id)
    assert service.http.get(where).content == b"weights"
    eventually(lambda: service.client.get(job.id).storage.startswith("copied"))
    remove(tmp_path / "runs" / job.id)
    (tmp_path / "copies").rename(tmp_path / "unplugged")
    answer = service.http.get(where)
    assert answer.status_code == 503
    assert "is it the right place, and mounted?" in answer.json()["detail"]
    assert "millrace doctor" in answer.json()["remedy"]
    (tmp_path / "unplugged").rename(tmp_path / "copies")
    for path in (tmp_path / "copies" / job.id / "objects").iterdir():
        path.write_bytes(b"spoilt")
    assert service.http.get(where).status_code == 502


@pytest.mark.parametrize(
    ("url", "told"),
    [("nothing://there", "nothing"), ("ftp://nobody:secret@127.0.0.1:9/runs", r"//127.0.0.1:9/runs cannot be reached")],
)
def test_a_storage_that_cannot_be_is_refused_before_anything_starts(url: str, told: str, tmp_path: Path) -> None:
    """An FTP library connects as soon as it is loaded."""
    options = ServeOptions("127.0.0.1", 0, tmp_path, None, None, storage=url)
    with pytest.raises(CannotServe, match=rf"--storage: .*{told}"):
        open_mirror(options)
    assert open_mirror(ServeOptions("127.0.0.1", 0, tmp_path, None, None)) is None
