"""Storages of every kind: a folder, memory, and S3 over HTTP, served by moto on a loopback address."""

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from service.storage.object_storage import Storage

NUMBERS = itertools.count()
KINDS = ("file", "memory", "s3")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """A real server that speaks S3 and has a bucket `millrace`; its address."""
    pytest.importorskip("s3fs", reason="S3 is spoken to through s3fs, which is not installed: pip install '.[s3]'")
    server = pytest.importorskip("moto.server", reason="S3 is served by moto, which is not installed")
    pytest.importorskip("flask_cors", reason="moto serves through flask and flask-cors, which are not installed")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    try:
        address = f"http://{host}:{port}"
        httpx2.put(f"{address}/millrace", trust_env=False, timeout=60).raise_for_status()  # a bucket
        yield address
    finally:
        running.stop()


@pytest.fixture
def s3(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a bucket."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return f"s3://millrace/place{next(NUMBERS)}"


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty storage of each kind."""
    if request.param == "s3":
        return str(request.getfixturevalue("s3"))
    return f"memory://copies{next(NUMBERS)}" if request.param == "memory" else f"file://{tmp_path}/copies"


@pytest.fixture
def storage(url: str) -> Storage:
    """Opened, and in use."""
    opened = Storage.open(url)
    opened.mark()
    return opened


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[], Storage]:
    """Opens a storage in a folder."""

    def open_folder() -> Storage:
        opened = Storage.open(f"file://{tmp_path}/copies")
        opened.mark()
        return opened

    return open_folder
