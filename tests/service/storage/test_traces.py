"""Traces of a run: what is listed and opened, and that nothing else is."""

from pathlib import Path

import pytest

from service.errors import TraceNotFound
from service.storage.traces import open_trace, traces
from tests.service.storage.copies import write_trace


def test_the_last_traces_are_listed_and_opened(tmp_path: Path) -> None:
    assert traces(tmp_path) == []
    names = [write_trace(tmp_path, number, b"trace %d" % number) for number in (9, 10_000, 10)]
    (tmp_path / "traces" / ".0011-worker-1-10.json.gz.part").write_bytes(b"half")
    found = traces(tmp_path)
    assert [(one.name, one.worker, one.steps) for one in found] == [(names[i], 1, 10) for i in (0, 2, 1)]
    with open_trace(tmp_path, names[1]) as file:
        assert file.read() == b"trace 10000"


def test_no_name_leads_anywhere_else(tmp_path: Path) -> None:
    name = write_trace(tmp_path, 1)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    link = tmp_path / "traces" / "0002-worker-1-10.json.gz"
    link.symlink_to(secret)
    (tmp_path / "traces" / "0003-worker-1-10.json.gz").mkdir()
    for other in (link.name, "0003-worker-1-10.json.gz", "../secret", "0004-worker-1-10.json.gz", f"{name}/"):
        with pytest.raises(TraceNotFound):
            open_trace(tmp_path, other)
    assert [one.name for one in traces(tmp_path)] == [name]
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "traces").symlink_to(tmp_path / "traces")
    assert traces(tmp_path / "elsewhere") == []
