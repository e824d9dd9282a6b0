"""The Prometheus metrics of a service: its jobs, its queue, its requests. `docs/operations.md` lists every metric.

The metrics of a run are exported by its coordinator through Ray. Here a job has metrics only while it is active.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from service.jobs.progress import Progress
from service.storage.mirror import Mirror
from trainers import Latency, State

WAITS_S = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
REQUESTS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LATENCIES_S = tuple(1e-6 * 2.0**octave for octave in range(6, 25))
"""64 us to 17 s: bounds of the run's own buckets, every fourth."""
TRAINING = (State.RUNNING, State.RECOVERING, State.PAUSING, State.CANCELLING)
METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"})


class ServiceMetrics:
    """The registry of one service."""

    def __init__(
        self,
        count: Callable[[], Mapping[State, int]],
        active: Callable[[], Mapping[str, Progress]],
        mirror: Mirror | None,
    ) -> None:
        self.registry = CollectorRegistry()
        self.queue_wait = Histogram(
            "millrace_queue_wait_seconds", "From a job's turn in the queue to its start.", buckets=WAITS_S,
            registry=self.registry,
        )  # fmt: skip
        self.requests = Histogram(
            "millrace_request_seconds", "From a request's first byte to its answer's.", ("method", "route", "status"),
            buckets=REQUESTS_S, registry=self.registry,
        )  # fmt: skip
        self.reachable = Gauge(
            "millrace_storage_reachable", "0 while the storage does not answer, else 1.", registry=self.registry
        )
        self.reachable.set(1)
        self.due_runs = Gauge("millrace_storage_due_runs", "Runs that wait to be copied.", registry=self.registry)
        if mirror is not None:
            self.reachable.set_function(lambda: float(not mirror.trouble))
            self.due_runs.set_function(lambda: float(mirror.num_due))
        self.registry.register(_Jobs(count, active))
        ProcessCollector(registry=self.registry)

    def answered(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """Count a request.

        route: The template and never the path, with which a caller could make any number of time series.
        """
        known = method if method in METHODS else "other"
        self.requests.labels(known, route or "none", str(status)).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format. Blocks: it asks the store."""
        return generate_latest(self.registry)


class _Jobs(Collector):
    """Metrics that are computed when they are scraped."""

    def __init__(self, count: Callable[[], Mapping[State, int]], active: Callable[[], Mapping[str, Progress]]) -> None:
        self.count = count
        self.active = active

    def collect(self) -> Iterator[Metric]:
        """Called once for each scrape."""
        versions = {name: metadata.version(name) for name in ("millrace", "ray")}
        build = InfoMetricFamily("millrace_build", "What runs here.")
        build.add_metric([], versions | {"python": platform.python_version()})
        yield build
        jobs = GaugeMetricFamily("millrace_jobs", "Jobs by state.", labels=["state"])
        counts = self.count()
        for state in State:
            jobs.add_metric([state], counts.get(state, 0))
        yield jobs
        yield from self._running()

    def _running(self) -> Iterator[Metric]:
        """The metrics of each job that trains, which are no more jobs than the cluster holds."""
        figures = {
            name: GaugeMetricFamily(f"millrace_job_{name}", description, labels=["job"])
            for name, description in {
                "examples_per_second": "Over the job's last report.",
                "epochs": "Passes over the training set so far.",
                "loss": "Mean training loss over the last report.",
                "workers": "Workers that contributed to the last report.",
            }.items()
        }
        headlines = GaugeMetricFamily(
            "millrace_job_headline",
            "What its task is judged by, of the last evaluation.",
            labels=["job", "metric"],
        )
        for job, progress in self.active().items():
            if progress.headline is not None and progress.state in TRAINING:
                metric, value = progress.headline
                headlines.add_metric([job, metric], value)
            if (now := progress.metrics) is not None and progress.state in TRAINING:
                values = (now.examples_per_s, now.epoch, now.loss, now.workers)
                for family, value in zip(figures.values(), values, strict=True):
                    family.add_metric([job], value)
        yield from (*figures.values(), headlines, *self._latencies())

    def _latencies(self) -> Iterator[Metric]:
        """How long the fetches and pushes of each job that trains have taken so far."""
        fetches = HistogramMetricFamily("millrace_job_fetch_seconds", "Fetches from the shards.", labels=["job"])
        pushes = HistogramMetricFamily("millrace_job_push_seconds", "Pushes, until acknowledged.", labels=["job"])
        for job, progress in self.active().items():
            for family, counts in ((fetches, progress.fetch_latency), (pushes, progress.push_latency)):
                latency = Latency.of(dict(counts))
                if latency is not None and progress.state in TRAINING:
                    family.add_metric([job], _cumulative(latency), latency.count * latency.mean_s)
        yield from (fetches, pushes)

    def describe(self) -> Iterator[Metric]:
        """Nothing, because registering must not ask the store."""
        return iter(())


def _cumulative(latency: Latency) -> list[tuple[str, float]]:
    """How many calls took no longer than each of LATENCIES_S, as Prometheus has it."""
    shares = [
        (f"{bound:.4g}", float(sum(count for upper, count in latency.buckets if upper <= 1.01 * bound)))
        for bound in LATENCIES_S
    ]
    return [*shares, ("+Inf", float(latency.count))]
