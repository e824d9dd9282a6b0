"""Prometheus' configuration, rules and dashboards, against a real Prometheus that watches a real service and run."""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from api import Client
from tests.api.http.test_real_job import server
from tests.docs.readme import ROOT, end
from trainers import ClusterInfo, State
from trainers.runtime.ray_metrics import COUNTERS

FOLDER = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json"))
SERVICE = "127.0.0.1:8466"
WITHIN_S = 400.0
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
OURS = re.compile(r"\b(?:ray_)?millrace_\w+|\bprocess_\w+|\bup\b")

JOB = {
    "algorithm": "downpour",
    "data": {"name": "digits", "limit": 203},
    "model": "mlp",
    "batch": 7,
    "epochs": 100_000,
    "report_every_s": 0.2,
    "checkpoint": {"every_epochs": 0},
    "evaluate": {"every_epochs": 0},
}
"""Long enough: it is cancelled once Prometheus has seen it."""

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None, reason="there is no prometheus")


def promtool(*arguments: str | Path) -> None:
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_the_configuration_and_the_rules() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("check", "rules", FOLDER / "rules.yml")


@needs_promtool
def test_alerts_fire_when_they_should_and_not_before() -> None:
    promtool("test", "rules", Path(__file__).with_name("rules_test.yml"))


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert all({"summary", "action"} <= set(rule["annotations"]) for rule in rules)
    tested = yaml.safe_load(Path(__file__).with_name("rules_test.yml").read_text())["tests"]
    fired = {case["alertname"] for test in tested for case in test["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules}


def queries() -> dict[str, str]:
    """Every query of the dashboards and the rules, by where it stands, with Grafana's variables filled in."""
    found = {}
    for path in DASHBOARDS:
        board = json.loads(path.read_text())
        for panel in board["panels"]:
            for target in panel["targets"]:
                found[f"{path.stem}, {panel['title']}, {target['refId']}"] = target["expr"]
        for variable in board["templating"]["list"]:
            metric, _label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()  # type: ignore[union-attr]
            found[f"{path.stem}, ${variable['name']}"] = metric
    for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]:
        found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return {place: q.replace("$__rate_interval", "1m").replace("$algorithm", ".*") for place, q in found.items()}


@contextmanager
def prometheus(folder: Path, service: str) -> Iterator[httpx2.Client]:
    """One that reads our configuration, but for the service's address and the time between two looks."""
    text = (FOLDER / "prometheus.yml").read_text()
    assert text.count(SERVICE) == 2
    text = re.sub(r"(scrape_interval|refresh_interval): \w+", r"\1: 1s", text).replace(SERVICE, service)
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(FOLDER / "rules.yml", folder)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder / "prometheus.log").open("w")
    options = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
    options |= {"web.listen-address": f"127.0.0.1:{port}"}
    process = subprocess.Popen(
        ["prometheus", *(f"--{name}={value}" for name, value in options.items())],
        stdout=log, stderr=log, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=60) as http:
            yield http
    finally:
        end(process)
        log.close()


def ask(http: httpx2.Client, path: str, **params: str) -> Any:
    """The data of an answer; none while Prometheus does not answer yet."""
    try:
        answer = http.get(path, params=params)
    except httpx2.TransportError:
        return None
    assert answer.status_code in (200, 503), answer.text
    return answer.json()["data"] if answer.status_code == 200 else None


@needs_prometheus
@pytest.mark.timeout(900)
def test_every_query_names_metrics_that_a_real_run_exports(tmp_path: Path, cluster: ClusterInfo) -> None:
    asked = queries()
    named = {name for query in asked.values() for name in OURS.findall(query)}
    assert len(named) > 20
    with server(tmp_path, cluster, 0) as url, Client(url) as client:
        assert (
            httpx2.get(f"{url}/v1/jobs/nothing", trust_env=False, timeout=60).status_code == 404
        )  # there is a panel for these
        job = client.submit(JOB)
        try:
            with prometheus(tmp_path, url.removeprefix("http://")) as http:
                deadline = time.monotonic() + WITHIN_S
                while missing := named - set(ask(http, "/label/__name__/values") or ()):
                    assert time.monotonic() < deadline, missing
                    assert not client.get(job.id).state.is_terminal, client.get(job.id).message
                    time.sleep(0.5)
                empty = {place for place in asked if place not in alerts()}
                while empty := {place for place in empty if not ask(http, "/query", query=asked[place])["result"]}:
                    assert time.monotonic() < deadline, empty
                    time.sleep(0.5)
                for place in alerts():  # they parse, whether they hold or not
                    assert ask(http, "/query", query=asked[place]) is not None
                assert_cardinality_is_low(http, job.id)
                assert exported(ask(http, "/label/__name__/values")) == documented()
        finally:
            client.cancel(job.id)
        assert client.wait(job.id).state is State.CANCELLED


def exported(names: list[str]) -> set[str]:
    """The metrics of ours among the names of all series."""
    ours = [name for name in names if re.match(r"(ray_)?millrace_", name)]
    return {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in ours}


def documented() -> set[str]:
    """The metrics that the tables of the documentation have."""
    return set(re.findall(r"^\| `(\w+)` \| (?:gauge|counter|histogram) \|", OPERATIONS, re.MULTILINE))


def alerts() -> set[str]:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return {rule["alert"] for group in groups for rule in group["rules"]}


def assert_cardinality_is_low(http: httpx2.Client, job_id: str) -> None:
    """What stays after a job does not name it."""
    series = ask(http, "/series", **{"match[]": '{__name__=~"(ray_)?millrace_.*"}'})
    names = {one["__name__"] for one in series if job_id in one.values()}
    latencies = {f"{call}_seconds_{part}" for call in ("fetch", "push") for part in ("bucket", "count", "sum")}
    figures = {"examples_per_second", "epochs", "loss", "workers"} | latencies
    assert names == {f"millrace_job_{figure}" for figure in figures}
    own = {"algorithm", "part", "node", "le"}
    ours = {label for one in series if one["__name__"].startswith("ray_") for label in one}
    rays = {"Component", "NodeAddress", "SessionName", "Version", "WorkerId", "instance", "job", "__name__"}
    assert ours - rays <= own


def test_the_dashboards_show_every_metric_of_a_run() -> None:
    shown = {name for query in queries().values() for name in OURS.findall(query)}
    assert {f"ray_{name}_total" for name in COUNTERS} <= shown
    assert {"ray_millrace_worker_seconds_total", "ray_millrace_staleness_updates_bucket"} <= shown


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_provisioned_as_it_stands(path: Path) -> None:
    board = json.loads(path.read_text())
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    sources = {panel["datasource"]["uid"] for panel in board["panels"]}
    sources |= {target["datasource"]["uid"] for panel in board["panels"] for target in panel["targets"]}
    assert sources == {source["uid"]}
    assert board["uid"].startswith("millrace-")
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    corners = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(corners) == len(ids)
