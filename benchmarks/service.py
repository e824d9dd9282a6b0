"""`python -m benchmarks.service`: how many posts, streams, lists, specs and figures one service bears."""

import argparse
import asyncio
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.measurement import machine, proc
from benchmarks.measurement.http_load import Answer, Connection, Subscriber, at_once, at_rate
from benchmarks.measurement.recorded_sweep import SWEEP, record
from benchmarks.measurement.report import as_bullets, as_table, report_path
from benchmarks.measurement.service_watch import EVERY_S, Watch, drawing
from benchmarks.measurement.statistics import Spread, Target
from service import MAX_VALUES, Store, configurations, parse_spec
from service.database.job_store import Submission
from service.status import Status
from trainers import State

CPUS = 2
STREAMED_S = 0.05
"""Between two reports of the job whose stream is read: 20 events a second."""
TRAINING = {"model": "lenet5", "data": "digits", "workers": 1, "epochs": 1_000_000, "evaluate": {"every_epochs": 0}}
TRAINING |= {"batch": 1, "checkpoint": {"every_epochs": 0}, "report_every_s": STREAMED_S}  # an epoch takes seconds
CAUGHT_UP_S = 60.0
LARGE_YAML = "".join(f"no-such-field-{index:033}: 1\n" for index in range(MAX_VALUES // 2 - 10)).encode()
"""As many values as are read, in 250 KB, and each field is wrong."""
MOST_MB = 250
QUEUED = {"model": "mlp", "data": "digits", "workers": CPUS, "epochs": 1}


@dataclass(frozen=True)
class Size:
    """How much of it."""

    same_key: int = 1000
    rate_per_s: float = 200.0
    submissions: int = 2000
    subscribers: int = 500
    streamed_s: float = 30.0
    reconnects: int = 100
    listed: int = 10_000
    rest_s: float = 30.0
    large_specs: int = 16
    large_specs_s: float = 20.0
    figure_readers: int = 12
    sweeps: int = 4


SMALL = Size(40, 20.0, 60, 10, 4.0, 5, 300, 3.0, 4, 3.0, 3, 1)


@dataclass(frozen=True)
class Figure:
    """One result, held against its bound."""

    target: Target
    values: Sequence[float]
    unit: str

    @property
    def row(self) -> tuple[str, ...]:
        """As a line of the report: the figure's own statistic is the last of its values."""
        spread = Spread(tuple(self.values[-1:]))
        bound = f"{self.target.kind} {self.target.bound:g} {self.unit}".rstrip()
        return (self.target.name, bound, f"{self.values[-1]:,.4g} {self.unit}".rstrip(), self.target.verdict(spread))


class Service:
    """`millrace serve` as a process."""

    def __init__(self, state_dir: Path) -> None:
        command = [sys.executable, "-m", "deploy.main", "serve", "--state-dir", str(state_dir), "--port", "0"]
        self.state_dir = state_dir
        with (state_dir / "serve.err").open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, "--num-cpus", str(CPUS)], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.address = ("", 0)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait(self) -> None:
        """Until it listens."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if (found := re.search(r"serves on http://([\d.]+):(\d+)", line)) is not None:
                self.address = found[1], int(found[2])
                return
        raise RuntimeError(f"the service does not start: {(self.state_dir / 'serve.err').read_text()}")

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None, accept: str = "*/*") -> Any:
        """One request by itself."""
        connection = Connection(*self.address)
        content = b"" if body is None else json.dumps(body).encode()
        answer = await connection.ask(method, path, content, f"Accept: {accept}\r\n")
        connection.close()
        if answer.status >= 400:
            raise RuntimeError(answer.body.decode())
        return json.loads(answer.body)

    def end(self) -> None:
        """The service, and its Ray."""
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        command = [sys.executable, "-m", "deploy.main", "serve", "--state-dir", str(self.state_dir), "--stop-cluster"]
        subprocess.run(command, check=False, capture_output=True)


@contextmanager
def serving(folder: Path, listed: int, sweeps: int = 0):  # type: ignore[no-untyped-def]
    """A service with so many ended jobs, and ended sweeps."""
    folder.mkdir()
    for number in range(sweeps):
        record(folder / "sweeps" / f"sweep-{number}")
    store = Store.open(f"sqlite:///{folder / 'millrace.db'}")
    specs = [parse_spec({"labels": {"n": str(digit)}}) for digit in range(10)]
    jobs = [store.submit(Submission(specs[index % 10]), folder / "runs") for index in range(listed)]
    ended = Status(State.SUCCEEDED, "Succeeded", "trained 5 epochs")
    with ThreadPoolExecutor(32) as pool:
        for job in jobs:
            pool.submit(store.finish, job.result().job.id, ended, time.time(), {"seq": 9})
    store.close()
    service = Service(folder)
    try:
        service.wait()
        yield service
    finally:
        service.end()


async def at_rest(service: Service, seconds: float) -> list[Figure]:
    """Nothing to do, before the first job."""
    await asyncio.sleep(2)
    used = proc.cpu_seconds(service.pid)
    await asyncio.sleep(seconds)
    share = (proc.cpu_seconds(service.pid) - used) / seconds
    size = proc.memory_bytes(service.pid)["Rss"] / 1e6
    return [
        Figure(Target("resident memory at rest", MOST_MB, "at most"), [size], "MB"),
        Figure(Target("CPU at rest", 1, "at most"), [100 * share], "% of a core"),
    ]


async def large_specs(service: Service, size: Size) -> list[Figure]:
    """Dry runs of the largest specs that are read, from several callers who ask again and again."""
    statuses, end = [], time.perf_counter() + size.large_specs_s

    async def caller() -> None:
        connection = Connection(*service.address)
        while time.perf_counter() < end:
            answer = await connection.ask("POST", "/v1/jobs?dry_run=true", LARGE_YAML, kind="yaml")
            statuses.append(answer.status)
        connection.close()

    async def load() -> None:
        await asyncio.gather(*(caller() for _ in range(size.large_specs)))

    watch = Watch(service.pid, service.address)
    await watch.during(load())
    return [
        *_watched(watch),
        Figure(Target("specs refused for their fields", size.large_specs), [statuses.count(422)], ""),
        Figure(Target("other answers", 0, "at most"), [len(statuses) - statuses.count(422)], ""),
    ]


async def all_figures(service: Service, size: Size, folder: Path) -> list[Figure]:
    """All figures of sweeps' reports, for several readers at once; then once more, of one sweep, as a command."""
    seconds = []

    async def reader(sweep: str) -> None:
        begin, connection = time.perf_counter(), Connection(*service.address)
        names = json.loads((await connection.ask("GET", f"/v1/sweeps/{sweep}/figures")).body)
        for name in names:
            answer = await connection.ask("GET", f"/v1/sweeps/{sweep}/figures/{name}")
            assert answer.status == 200, answer.body
        connection.close()
        seconds.append(time.perf_counter() - begin)

    async def load() -> None:
        await asyncio.gather(*(reader(f"sweep-{number % size.sweeps}") for number in range(size.figure_readers)))

    watch = Watch(service.pid, service.address)
    await watch.during(load())
    left = len(drawing(service.pid))
    took = await asyncio.to_thread(report_command, service, f"sweep-{size.sweeps}", folder)
    trials = len(configurations(SWEEP))
    return [
        *_watched(watch),
        Figure(Target("the last reader had all figures after", 30, "at most"), [max(seconds)], "s"),
        Figure(Target("processes that drew at once", 2, "at most"), [watch.drawing], ""),
        Figure(Target("of them left", 0, "at most"), [left], ""),
        Figure(Target(f"`millrace report --out` of {trials} trials", 10, "at most"), [took], "s"),
    ]


def report_command(service: Service, sweep: str, folder: Path) -> float:
    """Seconds that the command takes to write the report of a sweep whose figures nobody has asked for."""
    host, port = service.address
    command = [sys.executable, "-m", "deploy.main", "report", sweep, "--server", f"http://{host}:{port}"]
    begin = time.perf_counter()
    subprocess.run([*command, "--out", str(folder)], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def _watched(watch: Watch) -> list[Figure]:
    size = watch.resident_bytes / 1e6
    return [
        Figure(Target("p99 of a page of 50 meanwhile", 100, "at most"), _tail(watch.seconds, 1000, 99), "ms"),
        Figure(Target("resident memory, the most", MOST_MB, "at most"), [size], "MB"),
    ]


async def one_key(service: Service, count: int) -> list[Figure]:
    """Many posts at once with one key."""
    answers = await at_once(service.address, count, json.dumps(QUEUED).encode(), "the key")
    made = {json.loads(answer.body)["id"] for answer in answers if answer.status == 202}
    took = max(answer.seconds for answer in answers)
    return [
        Figure(Target(f"jobs made by {count:,} concurrent posts with one key", 1, "at most"), [len(made)], ""),
        Figure(Target("of them accepted", count), [sum(a.status == 202 for a in answers)], ""),
        Figure(Target("the last answer after", 10, "at most"), [took], "s"),
    ]


async def submissions(service: Service, count: int, per_s: float) -> list[Figure]:
    """Different jobs at a fixed rate, while one trains."""
    bodies = [json.dumps({**QUEUED, "seed": index, "name": f"job-{index}"}).encode() for index in range(count)]
    await asyncio.sleep(1)
    idle = proc.cpu_seconds(service.pid)
    await asyncio.sleep(2)
    before = proc.cpu_seconds(service.pid)
    begin = time.perf_counter()
    answers = await at_rate(service.address, bodies, per_s, connections=32)
    took = time.perf_counter() - begin
    used = proc.cpu_seconds(service.pid) - before - (before - idle) / 2 * took
    accepted = sum(answer.status == 202 for answer in answers)
    return [
        Figure(Target(f"of {count:,} submissions at {per_s:g} a second, accepted", count), [accepted], ""),
        Figure(Target("p99 from when it was due", 100, "at most"), percentiles(answers, 1000), "ms"),
        Figure(Target("CPU a submission", 1, "at most"), [1000 * used / count], "ms"),
    ]


async def streams(service: Service, job_id: str, size: Size) -> list[Figure]:
    """Many readers of the running job's events; some are cut off again and again, all must hear the same."""
    path = f"/v1/jobs/{job_id}/events"
    readers = [Subscriber(service.address, path) for _ in range(size.subscribers)]
    tasks = [asyncio.create_task(reader.read()) for reader in readers]
    began_s, told = time.time(), await service.ask("GET", path, accept="application/json")
    async with asyncio.timeout(CAUGHT_UP_S):
        while any(reader.seen < told[-1]["seq"] for reader in readers):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    caught_up_s, live_from_s = time.time() - began_s, time.time()
    for reader in readers:
        reader.live_from_s = live_from_s
    for index in range(size.reconnects):
        await asyncio.sleep(size.streamed_s / size.reconnects)
        readers[index % len(readers)].cut()
    streamed_s = time.time() - live_from_s
    await service.ask("POST", f"/v1/jobs/{job_id}/cancel")
    await asyncio.wait_for(asyncio.gather(*tasks), 60)
    delays = sorted(delay for reader in readers for delay in reader.delays_s)
    histories = {reader.history.hexdigest() for reader in readers}
    rate = len(delays) / len(readers) / streamed_s
    return [
        Figure(
            Target(f"{len(readers)} readers heard {len(told)} events of the past after", 10, "at most"),
            [caught_up_s],
            "s",
        ),
        Figure(Target("events a second in the stream", 18), [rate], ""),
        Figure(Target("p95 from the coordinator's event to the client", 250, "at most"), _tail(delays, 1000, 95), "ms"),
        Figure(Target("forced reconnects", size.reconnects), [sum(reader.reconnects for reader in readers)], ""),
        Figure(Target(f"different histories of {len(readers)} readers", 1, "at most"), [len(histories)], ""),
    ]


async def lists(service: Service) -> list[Figure]:
    """Pages of a long list, through to its end."""
    connection, token, answers = Connection(*service.address), "", []
    while token is not None and len(answers) < 100:
        query = f"&page_token={token}" if token else ""
        answers.append(await connection.ask("GET", f"/v1/jobs?page_size=50{query}"))
        token = json.loads(answers[-1].body)["next_page_token"]
    connection.close()
    return [Figure(Target("p95 of a page of 50", 50, "at most"), _tail([a.seconds for a in answers], 1000, 95), "ms")]


def percentiles(answers: Sequence[Answer], scale: float) -> list[float]:
    """The median, the 95th and the 99th percentile."""
    return _tail([answer.seconds for answer in answers], scale, 99)


def _tail(values: Sequence[float], scale: float, last: int) -> list[float]:
    ordered = sorted(values)
    return [scale * ordered[min(len(ordered) - 1, len(ordered) * share // 100)] for share in (50, 90, last)]


async def measure(service: Service, size: Size, folder: Path) -> dict[str, list[Figure]]:
    """Everything, in one run."""
    found = {"at rest": await at_rest(service, size.rest_s)}
    found[f"a list of {size.listed:,} jobs"] = await lists(service)
    found[f"{size.large_specs} callers' YAML of {len(LARGE_YAML) // 1000} KB"] = await large_specs(service, size)
    found[f"{size.figure_readers} readers of figures"] = await all_figures(service, size, folder)
    job = await service.ask("POST", "/v1/jobs", TRAINING)
    while (await service.ask("GET", f"/v1/jobs/{job['id']}"))["metrics"] is None:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    found["one key"] = await one_key(service, size.same_key)
    found["submissions while a job trains"] = await submissions(service, size.submissions, size.rate_per_s)
    found["event streams"] = await streams(service, job["id"], size)
    return found


def markdown(found: dict[str, list[Figure]], size: Size, loads: tuple[str, str]) -> str:
    """The report."""
    rows = [(title, *figure.row, _spelt(figure)) for title, figures in found.items() for figure in figures]
    settings = {
        "service": f"`millrace serve` on SQLite, with a Ray of its own of {CPUS} logical CPUs on the same machine",
        "client": "one process on the same machine, HTTP/1.1 over loopback",
        "training beside it": "LeNet-5 on digits, 1 worker, 20 reports a second",
        "sizes": ", ".join(f"{name} {value:g}" for name, value in asdict(size).items()),
    }
    header = ("what", "figure", "bound", "found", "verdict", "p50, p90, tail")
    parts = [
        "# One service under load",
        as_bullets({**machine.describe(), "load average before": loads[0], "after": loads[1]}),
        as_bullets(settings),
        as_table(header, rows),
        "The p99 of submissions counts from when each was due, whether or not the service kept up. Their CPU is the "
        "service's own, all threads, less what it uses for the training job alone. While others post YAML or "
        f"read figures, a page is asked for every {EVERY_S * 1000:g} ms; its time, too, counts from when it was due.",
        machine.disturbed(loads[0]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _spelt(figure: Figure) -> str:
    return ", ".join(f"{value:,.4g}" for value in figure.values) if len(figure.values) > 1 else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print or write the report."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.service", description=__doc__)
    parser.add_argument("--small", action="store_true", help="a few of everything, to see that it works")
    parser.add_argument("--report", action="store_true", help="write the dated report into benchmarks/results")
    options = parser.parse_args(arguments)
    size, before = SMALL if options.small else Size(), machine.load()
    with (
        tempfile.TemporaryDirectory() as temp,
        serving(Path(temp) / "state", size.listed, size.sweeps + 1) as service,
    ):
        found = asyncio.run(measure(service, size, Path(temp) / "report"))
    text = markdown(found, size, (before, machine.load()))
    print(text)
    if options.report:
        path = report_path("service")
        path.write_text(text)
        raw = {title: [asdict(figure) for figure in figures] for title, figures in found.items()}
        path.with_suffix(".json").write_text(json.dumps(raw, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
