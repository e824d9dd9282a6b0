"""Registered models: versions of a name, whose files stay whatever becomes of their jobs."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from api import AsyncClient, Refused, build
from service import ModelVersion
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service
from tests.api.models.test_exports import finished
from tests.service.fakes import FakeRuns, whole_run
from trainers.training.export import FINISHED


@pytest.fixture
def service(serve: Callable[..., Service]) -> Service:
    started = serve()
    started.runs.script = whole_run
    return started


def files(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "models").iterdir()}


def test_a_version_outlives_its_job_and_the_service(
    service: Service, serve: Callable[..., Service], tmp_path: Path
) -> None:
    first, run_dir = finished(service, model="mlp", data="digits")
    made = service.client.register(first, "digits", notes="the baseline")
    digest = hashlib.sha256(b"weights").hexdigest()
    assert (made.id, made.job, made.bytes, made.sha256, made.notes) == ("digits@1", first, 7, digest, "the baseline")
    assert {"model": "mlp", "data": "digits", "algorithm": "sync"}.items() <= made.facts.items()
    assert service.client.register(first, "digits") == made, "the same model again is the same version"
    (run_dir / FINISHED).write_bytes(b"better")
    assert service.client.register(first, "digits").id == "digits@2"
    assert service.client.register(first, "other").id == "other@1", "each name counts by itself"
    service.client.delete(first)
    service.stop()
    again = serve()
    assert [one.id for one in again.client.versions()] == ["other@1", "digits@2", "digits@1"]
    assert [one.id for one in again.client.versions("digits")] == ["digits@2", "digits@1"]
    assert [one.id for one in again.client.versions(latest=True)] == ["other@1", "digits@2"]
    assert len([*again.client.versions(job_id=first)]) == 3
    for reference, content in (("digits@1", b"weights"), ("digits@latest", b"better"), ("digits", b"better")):
        again.client.download_version(reference, tmp_path / "got")
        assert (tmp_path / "got").read_bytes() == content
    part = again.http.get("/v1/registry/digits@1/model", headers={"Range": "bytes=4-"})
    assert (part.status_code, part.content) == (206, b"hts")


def test_a_file_goes_with_its_last_version_and_no_number_comes_again(service: Service, tmp_path: Path) -> None:
    job, _ = finished(service)
    for name in ("a", "b"):
        service.client.register(job, name)
    service.client.remove_version("a@1")
    assert len(files(tmp_path)) == 1
    assert service.client.register(job, "a").id == "a@2"
    for reference in ("a@2", "b@1"):
        service.client.remove_version(reference)
    assert not files(tmp_path)
    for path in ("a@2", "a", "a@latest", "a@1", "a@x", "no such", "a@1/model"):
        assert service.http.get(f"/v1/registry/{path}").status_code == 404
    assert service.client.register(job, "b").id == "b@2"


def test_only_its_user_or_an_admin_removes_a_version(serve: Callable[..., Service]) -> None:
    service = serve(is_required=True)
    service.runs.script = whole_run
    ann, bob, root = service.bearer("user"), service.bearer("user", "bob"), service.bearer("admin", "root")
    service.client.http.headers.update(ann)
    job, _ = finished(service)
    body = {"name": "digits", "job": job}
    assert service.http.post("/v1/registry", json=body, headers=service.bearer("viewer", "eve")).status_code == 403
    made = service.http.post("/v1/registry", json=body, headers=ann)
    assert (made.status_code, made.headers["location"]) == (201, "/v1/registry/digits@1")
    assert service.http.post("/v1/registry", json=body, headers=bob).status_code == 200
    assert service.http.delete("/v1/registry/digits", headers=bob).status_code == 403
    assert service.http.delete("/v1/registry/digits@latest", headers=ann).status_code == 204
    told = service.http.get("/v1/audit?target=digits@1", headers=root).json()["entries"]
    assert [(one["action"], one["user"], one["status"]) for one in told] == [
        ("registry.delete", "ann", 204), ("registry.delete", "bob", 403), ("registry.register", "ann", 201)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "status"),
    [({"name": "a@1"}, 422), ({"name": "x" * 51}, 422), ({"job": "000000000000"}, 404), ({"which": "best"}, 404),
     ({"which": "worst"}, 422), ({"notes": "\0"}, 422), ({"stage": "production"}, 422)],
)  # fmt: skip
def test_what_cannot_be_registered_is_refused(service: Service, body: dict[str, str], status: int) -> None:
    job, _ = finished(service)
    assert service.http.post("/v1/registry", json={"name": "digits", "job": job, **body}).status_code == status
    assert not [*service.client.versions()]


def test_a_full_disk_leaves_nothing_behind(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, _ = finished(service)
    monkeypatch.setattr("service.registry.registry.chunks", lambda _: (_ for _ in ()).throw(OSError(28, "no space")))
    with pytest.raises(Refused, match=r"the model cannot be kept at .*: no space"):
        service.client.register(job, "digits")
    assert not files(tmp_path)
    monkeypatch.undo()
    assert service.client.register(job, "digits").id == "digits@1"


def test_the_command_line_registers_lists_shows_fetches_and_removes(service: Service, tmp_path: Path) -> None:
    job, _ = finished(service)
    app = build(cli_context(FakeRuns(), tmp_path, service.url))

    def told(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(app, [*words])
        assert result.exit_code == status, result.output
        return result.output

    assert told("register", job, "digits", "--notes", "ours") == (
        f"digits@1 is the model of job {job}; `millrace model digits@1` fetches it\n"
    )
    assert ModelVersion.model_validate_json(told("register", job, "digits", "-o", "json")).id == "digits@1"
    for words in ([], ["digits"]):
        assert "digits@1" in told("registry", *words)
        (listed,) = json.loads(told("registry", *words, "-o", "json"))["versions"]
        assert listed["id"] == "digits@1"
    assert "lenet5 on digits" in told("registry", "digits@1")
    out = tmp_path / "got.safetensors"
    told("model", "digits@latest", "--out", str(out))
    assert out.read_bytes() == b"weights"
    assert "is one file, of safetensors" in told("model", "digits@1", "--format", "onnx", status=2)
    assert "NAME@VERSION" in told("registry", "digits", "--delete", status=2)
    assert told("registry", "digits@1", "--delete") == "digits@1 is removed.\n"
    assert "no model digits@1 is registered" in told("registry", "digits@1", status=2)


def test_the_client_with_an_event_loop_does_the_same(service: Service, tmp_path: Path) -> None:
    job, _ = finished(service)

    async def scenario() -> None:
        async with AsyncClient(service.url) as client:
            made = await client.register(job, "digits")
            assert [one async for one in client.versions(latest=True)] == [await client.version("digits")] == [made]
            await client.download_version("digits@1", tmp_path / "got")
            await client.remove_version("digits@1")

    asyncio.run(scenario())
    assert (tmp_path / "got").read_bytes() == b"weights"
