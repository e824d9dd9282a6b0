"""Schemathesis against the whole API: examples, coverage, fuzzing and stateful; nothing it finds is let pass."""

import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.conftest import Service
from tests.api.sign_in.provider import Provider
from tests.service.fakes import FakeRun
from trainers.events import State

CONFIG = Path(__file__).with_name("schemathesis.toml")
ST = Path(sys.executable).with_name("st")
MANY = 10_000
PARTS = 3
"""In which all operations are tried one by one, while another process tries their examples and follows their links."""
ANSWERS_WITHIN_S = 120
"""Schemathesis has 10, and to draw the first figures of a sweep has taken longer on a busy machine."""
WHOLE_WITHIN_S = 6 * 3600
"""It takes an hour or more, and a busy machine may be many times as slow."""
RUNS_FOR_S = 0.5
LONGEST_S = 0.1  # of a stream: nobody waits for the end of a sweep that nobody drives


def short(run: FakeRun) -> None:
    """A run that is over before a reader of its log has lost patience."""
    run.state(State.STARTING)
    run.state(State.RUNNING)
    run.step(1.0)
    end = threading.Timer(RUNS_FOR_S, lambda: run.succeed() if run.alive else None)
    end.daemon = True
    end.start()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, serve: Callable[..., Service], provider: Provider) -> Service:
    """On runs that can be stopped, with a sign-in provider, and with sweeps that somebody else drives, until after the
    server has stopped."""
    driver = types.ModuleType("service.sweeps.driver")
    driver.is_alive = lambda _: True  # type: ignore[attr-defined]
    for name in ("start_driver", "kill_driver", "wait_for_exit", "recover"):
        setattr(driver, name, lambda *_: None)
    monkeypatch.setitem(sys.modules, "service.sweeps.driver", driver)
    service = serve(sign_in=provider.sign_in, allow="192.0.2.0/24", longest_s=LONGEST_S)
    service.runs.script = short
    return service


class Fuzz:
    """Schemathesis on one service.

    It comes with a token of the provider, which no request can end: with one of the service it would shut itself out.
    """

    def __init__(self, service: Service, provider: Provider, folder: Path, within_s: float) -> None:
        self.url, self.folder, self.within_s = f"{service.url}/openapi.json", folder, within_s
        # Schemathesis gives the schema 10 s, too, which is made when it is first asked for.
        answer = service.http.get("/openapi.json", timeout=ANSWERS_WITHIN_S).raise_for_status()
        self.paths: list[str] = list(answer.json()["paths"])
        self.token = provider.token(groups=["ml-admins"], exp=int(time.time() + within_s + 60))

    def run(self, name: str, *options: str) -> int:
        """How many cases were tried. Fails with what Schemathesis says if it found anything."""
        (folder := self.folder / name).mkdir()
        command = [str(ST), "--config-file", str(CONFIG), "run", self.url, "--no-color"]
        command += ["--header", f"Authorization: Bearer {self.token}", f"--request-timeout={ANSWERS_WITHIN_S}"]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, timeout=self.within_s, check=False, cwd=folder
        )
        (whole := folder / "schemathesis.txt").write_text(done.stdout)  # one exception of its own may fill the screen
        assert done.returncode == 0, f"{done.stdout[-20_000:]}{done.stderr[-2000:]}\nThe whole of it is in {whole}."
        (cases,) = re.findall(r"([\d,]+) generated", done.stdout)
        return int(cases.replace(",", ""))


@pytest.mark.timeout(600)
def test_the_whole_api_in_short(service: Service, provider: Provider, tmp_path: Path) -> None:
    """Without the phase that tries every bound of every field of a spec, which takes minutes."""
    phases = "--phases=examples,fuzzing,stateful"
    assert Fuzz(service, provider, tmp_path, within_s=580).run("whole", phases, "--max-examples=2", "--seed=1") > 80


@pytest.mark.slow
@pytest.mark.timeout(WHOLE_WITHIN_S + 60)
def test_the_whole_api_in_full(service: Service, provider: Provider, tmp_path: Path) -> None:
    """By several processes at once: one alone waits for answers most of the time. Its own `--workers` are threads, in
    which Hypothesis fails now and then as it parses code, on CPython 3.11 (python/cpython#106905)."""
    fuzz = Fuzz(service, provider, tmp_path, WHOLE_WITHIN_S)

    def some(part: int) -> int:
        paths = [f"--include-path={path}" for path in fuzz.paths[part::PARTS]]
        return fuzz.run(f"part-{part}", "--phases=coverage,fuzzing", "--max-examples=200", *paths)

    with ThreadPoolExecutor() as pool:
        stateful = pool.submit(fuzz.run, "whole", "--phases=examples,stateful", "--max-examples=200")
        assert sum(pool.map(some, range(PARTS))) + stateful.result() >= MANY
