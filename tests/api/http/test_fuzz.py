"""Schemathesis against the whole API: examples, coverage, fuzzing and stateful; nothing it finds is let pass."""

import re
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.api.conftest import Service
from tests.api.sign_in.provider import Provider
from tests.service.fakes import FakeRun
from trainers.events import State

CONFIG = Path(__file__).with_name("schemathesis.toml")
ST = Path(sys.executable).with_name("st")
MANY = 10_000
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


def fuzz(service: Service, provider: Provider, folder: Path, *options: str, within_s: float) -> int:
    """How many cases were tried. Fails with what Schemathesis says if it found anything.

    It comes with a token of the provider, which no request can end: with one of the service it would shut itself out.
    """
    # Schemathesis gives the schema 10 s, too, which is made when it is first asked for.
    service.http.get("/openapi.json", timeout=ANSWERS_WITHIN_S).raise_for_status()
    token = provider.token(groups=["ml-admins"], exp=int(time.time() + within_s + 60))
    options += ("--header", f"Authorization: Bearer {token}")
    command = [ST, "--config-file", str(CONFIG), "run", f"{service.url}/openapi.json", "--no-color"]
    command += [f"--request-timeout={ANSWERS_WITHIN_S}", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=within_s, check=False, cwd=folder)
    (whole := folder / "schemathesis.txt").write_text(done.stdout)  # one exception of its own may fill the screen
    assert done.returncode == 0, f"{done.stdout[-20_000:]}{done.stderr[-2000:]}\nThe whole of it is in {whole}."
    (cases,) = re.findall(r"([\d,]+) generated", done.stdout)
    return int(cases.replace(",", ""))


@pytest.mark.timeout(600)
def test_the_whole_api_in_short(service: Service, provider: Provider, tmp_path: Path) -> None:
    """Without the phase that tries every bound of every field of a spec, which takes minutes."""
    phases = "--phases=examples,fuzzing,stateful"
    assert fuzz(service, provider, tmp_path, phases, "--max-examples=2", "--seed=1", within_s=580) > 80


@pytest.mark.slow
@pytest.mark.timeout(WHOLE_WITHIN_S + 60)
def test_the_whole_api_in_full(service: Service, provider: Provider, tmp_path: Path) -> None:
    """By several at once: one alone waits for answers most of the time."""
    assert fuzz(service, provider, tmp_path, "--max-examples=200", "--workers=4", within_s=WHOLE_WITHIN_S) >= MANY
