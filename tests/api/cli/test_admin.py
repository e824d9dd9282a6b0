"""The command line's part about running a service, and what makes it pleasant: settings, completion, many jobs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Outcome
from typer.testing import CliRunner

from api import build
from api.cli.actions.doctor import findings
from service import Finding, Health, NodeGroup, Resources, doctor
from tests.api.cli.fake_cli import cli_context
from tests.api.conftest import Service, eventually
from tests.service.fakes import FakeRuns, whole_run
from trainers.events import State

MILLRACE = Path(sys.executable).parent / "millrace"
ROOT = Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:9"

Cli = Callable[..., Outcome]


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    def call(*arguments: object, server: str = NOWHERE, **others: Any) -> Outcome:
        app = build(cli_context(FakeRuns(script=whole_run), tmp_path / "runs", server, **others))
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return call


def loads(outcome: Outcome) -> Any:
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)


# -- tokens -------------------------------------------------------------------------------------------------------


def test_a_token_from_its_making_to_its_end(cli: Cli, tmp_path: Path) -> None:
    outcome = cli("token", "create", "ann", "--role", "user")
    assert outcome.exit_code == 0, outcome.output
    text = outcome.stdout.strip()
    assert text.startswith("mlr_")
    assert "shown this once" in outcome.stderr
    made = loads(cli("token", "create", "bob", "--role", "admin", "--days", "1", "-o", "json"))
    assert made["token"].split("_")[1] == made["id"]
    listed = loads(cli("token", "list", "-o", "json"))["tokens"]
    assert [(one["user"], one["role"]) for one in listed] == [("bob", "admin"), ("ann", "user")]
    shown = cli("token", "list").stdout
    assert "until 2" in shown
    assert text not in shown
    assert loads(cli("token", "revoke", made["id"], "-o", "json"))["revoked"] is not None
    assert "no, revoked" in cli("token", "list").stdout
    assert oct((tmp_path / "state").stat().st_mode)[-3:] == "700"


def test_tokens_that_cannot_be(cli: Cli) -> None:
    assert cli("token", "create", "ann").exit_code == 2  # without a role
    assert cli("token", "create", "../x", "--role", "user").exit_code == 2
    outcome = cli("token", "revoke", "nosuch")
    assert (outcome.exit_code, "millrace token list" in outcome.stderr) == (2, True)
    assert cli("token", "create", "ann", "--role", "user", "--state-dir", "/dev/null/x").exit_code == 1


def test_our_token_is_shown_to_our_service_and_to_no_other(cli: Cli, serve: Callable[..., Service]) -> None:
    service = serve(is_required=True)
    token = service.bearer("viewer")["Authorization"].removeprefix("Bearer ")
    assert loads(cli("list", "-o", "json", server=service.url, token=token)) == {"jobs": []}
    assert loads(cli("list", "-o", "json", "--server", service.url + "/", server=service.url, token=token))
    outcome = cli("list", "--server", service.url, server=NOWHERE, token=token)
    assert outcome.exit_code == 2
    assert "asks for a token" in outcome.stderr
    assert "millrace token create" in outcome.stderr


# -- webhooks -----------------------------------------------------------------------------------------------------


def test_webhooks(cli: Cli, serve: Callable[..., Service]) -> None:
    service = serve(allow="127.0.0.0/8")
    url = "http://127.0.0.1:9/hook"
    made = loads(cli("webhook", "create", url, "--state", "failed", "-o", "json", server=service.url))
    assert made["secret"].startswith("whsec_")
    assert [one["states"] for one in loads(cli("webhook", "list", "-o", "json", server=service.url))["webhooks"]] == [
        ["FAILED"]
    ]
    assert url in cli("webhook", "list", server=service.url).stdout
    other = cli("webhook", "create", url, server=service.url)
    assert other.stdout.startswith("whsec_")
    service.started(service.client.submit({}).id).succeed()
    newest = next(service.client.webhooks()).id
    eventually(lambda: any(one["error"] for one in service.client.get_webhook(newest)["deliveries"]))
    assert "ConnectError" in cli("webhook", "show", newest, server=service.url).stdout
    assert loads(cli("webhook", "show", made["id"], "-o", "json", server=service.url))["deliveries"] == []
    assert loads(cli("webhook", "delete", made["id"], "-o", "json", server=service.url))["deleted"]
    assert cli("webhook", "show", made["id"], server=service.url).exit_code == 2
    assert cli("webhook", "create", "http://10.0.0.1/", server=service.url).exit_code == 2
    assert cli("webhook", "create", url, "--state", "dreaming", server=service.url).exit_code == 2


# -- the audit ----------------------------------------------------------------------------------------------------


def test_the_audit(cli: Cli, serve: Callable[..., Service]) -> None:
    service = serve()
    jobs = [service.client.submit({"name": name}).id for name in ("first", "second")]
    service.client.cancel(jobs[0])
    told = cli("audit", server=service.url)
    assert [line.split()[5:7] for line in told.stdout.splitlines()[1:]] == [
        ["job.cancel", jobs[0]], ["job.submit", jobs[1]], ["job.submit", jobs[0]]
    ]  # fmt: skip
    assert "name first" in told.stdout

    def found(*options: object) -> list[tuple[str, str]]:
        entries = loads(cli("audit", *options, "-o", "json", server=service.url))["entries"]
        return [(entry["action"], entry["target"]) for entry in entries]

    assert found(jobs[0]) == [("job.cancel", jobs[0]), ("job.submit", jobs[0])]
    assert found("--action", "job.submit", "--limit", 1) == [("job.submit", jobs[1])]
    assert found("--user", "ann") == found("--since", "2999-01-01") == found("--until", "2000-01-01") == []
    assert cli("audit", "--since", "soon", server=service.url).exit_code == 2


# -- many jobs ----------------------------------------------------------------------------------------------------


def test_watching_several_jobs(cli: Cli, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [service.client.submit({"workers": 1}).id for _ in range(2)]
    runs = [service.started(job_id) for job_id in ids]
    for run in runs:
        run.state(State.RUNNING)
    eventually(lambda: {service.client.get(job_id).state for job_id in ids} == {State.RUNNING})
    sleep = time.sleep

    def end_meanwhile(_: float) -> None:
        if all(run.alive for run in runs):
            runs[0].succeed()
            runs[1].state(State.FAILED, "Broken", "it broke")
        sleep(0.05)

    monkeypatch.setattr("api.cli.actions.watch.time.sleep", end_meanwhile)
    outcome = cli("watch", server=service.url)
    assert outcome.exit_code == 1
    lines = outcome.stdout.splitlines()
    assert any(line.startswith(ids[0]) and "SUCCEEDED" in line for line in lines)
    assert any(line.startswith(ids[1]) and line.endswith("FAILED it broke") for line in lines)
    told = loads(cli("watch", ids[0], ids[0], "-o", "json", server=service.url))["jobs"]
    assert [(one["id"], one["state"]) for one in told] == [(ids[0], "SUCCEEDED")]
    assert cli("watch", server=service.url).exit_code == 0  # none is left
    assert cli("watch", ids[0], "nosuchjob", server=service.url).exit_code == 2


def test_the_table_of_many_on_a_terminal(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from api.cli.actions.watch import watch_jobs

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    job = service.client.submit({"name": "shown"})
    service.started(job.id).succeed()
    service.client.wait(job.id)
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    assert watch_jobs(service.client, [job.id], as_json=False) == 0
    assert "shown" in screen.getvalue()
    assert "SUCCEEDED" in screen.getvalue()


def test_events_as_lines_of_json(cli: Cli, service: Service) -> None:
    job = service.client.submit({})
    run = service.started(job.id)
    run.step(1.0)
    told = [
        json.loads(line)["type"] for line in cli("logs", job.id, "-o", "json", server=service.url).stdout.splitlines()
    ]
    assert told == ["state", "step"]
    run.succeed()
    lines = cli("logs", "-f", job.id, "-o", "json", server=service.url).stdout.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3, 4]


# -- doctor -------------------------------------------------------------------------------------------------------


def test_the_doctor_on_a_machine_that_is_well(cli: Cli, service: Service) -> None:
    outcome = cli("doctor", "-o", "json", server=service.url)
    assert outcome.exit_code == 0, outcome.output
    found = {one["part"]: one for one in json.loads(outcome.stdout)["findings"]}
    assert set(found) >= {
        "packages",
        "settings",
        "state",
        "runs",
        "store",
        "storage",
        "shared memory",
        "GPUs",
        "data",
        "service",
        "Ray",
    }
    assert found["Ray"]["told"] == "it starts on this machine: 4 CPUs, 0 GPUs"
    assert found["service"]["told"].endswith("takes you for local, admin")
    assert all(one["mend"] for one in found.values() if one["health"] != "ok")
    told = cli("doctor", "--quick", server=NOWHERE)
    assert told.exit_code == 0
    assert "-> `millrace serve` starts one" in told.stdout
    assert "Ray" not in [line.split()[0] for line in told.stdout.splitlines()]


def test_the_doctor_finds_what_is_wrong(cli: Cli, serve: Callable[..., Service], tmp_path: Path) -> None:
    service = serve(is_required=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "millrace.db").write_bytes(b"no database at all, but long enough for a header" * 100)
    (tmp_path / "config.toml").write_text('token = "mlr_x_y"\n')
    (tmp_path / "config.toml").chmod(0o644)
    (tmp_path / "runs").write_text("a file")
    outcome = cli(
        "doctor", "--quick", "-o", "json", server=service.url, config=tmp_path / "config.toml", token="mlr_x_y"
    )
    assert outcome.exit_code == 1
    found = [Finding.model_validate(one) for one in json.loads(outcome.stdout)["findings"]]
    failed = {one.part: one for one in found if one.health is Health.failed}
    assert set(failed) == {"store", "settings", "service", "runs"}
    assert failed["settings"].remedy == f"chmod 600 {tmp_path / 'config.toml'}"
    assert all(one.remedy for one in failed.values())
    elsewhere = cli(
        "doctor", "--quick", "--state-dir", str(tmp_path / "other"), "--storage", "ftp://127.0.0.1:9/y", "-o", "json"
    )
    found = [Finding.model_validate(one) for one in json.loads(elsewhere.stdout)["findings"]]
    store, storage = (next(one for one in found if one.part == part) for part in ("store", "storage"))
    assert store.message == f"there is none yet; `millrace serve` makes {tmp_path / 'other' / 'millrace.db'}"
    assert storage.health is Health.failed
    assert "127.0.0.1:9/y cannot be reached" in storage.message


@pytest.mark.parametrize(
    ("grows_to", "health", "told"),
    [
        ((), Health.failed, "0 CPUs, 0 GPUs"),
        ((NodeGroup(nodes=8, cpus=4),), Health.ok, "may grow to 8 nodes of 4 CPUs"),
    ],
)
def test_the_doctor_on_a_cluster_without_workers(
    tmp_path: Path, grows_to: tuple[NodeGroup, ...], health: Health, told: str
) -> None:
    context = cli_context(FakeRuns(total=Resources(0, 0)), tmp_path / "runs", grows_to=grows_to)
    found = list(findings(context, None, "192.0.2.1:6379", False))[-1]
    assert (found.part, found.health) == ("Ray", health)
    assert found.message.endswith(told)
    assert ("`grows_to`" in found.remedy) == (health is Health.failed)


def only(found: Any) -> Finding:
    (one,) = found
    assert isinstance(one, Finding)
    return one


def test_each_part_says_how_to_repair_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert only(doctor.data(tmp_path / "none")).health is Health.warning
    (tmp_path / "MNIST").mkdir()
    assert "mnist" in only(doctor.data(tmp_path)).message
    tmp_path.chmod(0o755)
    assert only(doctor.folder("state", tmp_path, is_private=True)).remedy == f"chmod 700 {tmp_path}"
    assert only(doctor.shared_memory(tmp_path / "none")).health is Health.warning
    assert only(doctor.gpus(tmp_path)).health is Health.ok
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr("service.doctor.metadata.version", lambda _: "2.15.0+cpu")
    assert only(doctor.gpus(tmp_path)).health is Health.failed
    monkeypatch.setattr("service.doctor.metadata.version", lambda _: "2.15.0")
    assert "1 here" in only(doctor.gpus(tmp_path)).message
    monkeypatch.setattr("service.doctor.LEAST_FREE_BYTES", 2**80)
    assert only(doctor.folder("runs", tmp_path)).health is Health.warning


def test_a_database_server_that_is_not_there() -> None:
    found = only(doctor.database_server("postgresql+nothing://ann:secret@127.0.0.1:9/millrace"))
    assert (found.health, "secret" in found.message) == (Health.failed, False)


def test_a_ray_that_does_not_start(tmp_path: Path) -> None:
    from trainers.errors import ClusterUnavailable

    def fails(*_: object) -> Any:
        raise ClusterUnavailable("no Ray cluster answers at 192.0.2.1:1")

    found = list(findings(cli_context(FakeRuns(), tmp_path, cluster=fails), NOWHERE, "192.0.2.1:1", is_quick=False))
    assert (found[-1].part, found[-1].health) == ("Ray", Health.failed)
    assert "address" in found[-1].remedy


def test_a_cluster_that_asks_for_no_token(tmp_path: Path) -> None:
    for is_open, health in ((True, Health.warning), (False, Health.ok)):
        context = cli_context(FakeRuns(is_open=is_open), tmp_path)
        ray = list(findings(context, NOWHERE, "192.0.2.1:6379", is_quick=False))[-1]
        assert (ray.part, ray.health) == ("Ray", health)
        assert ("RAY_AUTH_MODE=token" in (ray.remedy or "")) == is_open


# -- settings and completion --------------------------------------------------------------------------------------


def millrace(tmp_path: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    fresh = {"PATH": os.defpath, "PYTHONPATH": str(ROOT), "MILLRACE_CONFIG": str(tmp_path / "config.toml")}
    return subprocess.run(
        [MILLRACE, *arguments], capture_output=True, text=True, timeout=60, check=False, env=fresh | environment
    )


def test_the_config_file(service: Service, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'server = "{service.url}"\n')
    assert json.loads(millrace(tmp_path, "list", "-o", "json").stdout) == {"jobs": []}
    outcome = millrace(tmp_path, "list", MILLRACE_SERVER=NOWHERE)  # the environment wins
    assert (outcome.returncode, NOWHERE in outcome.stderr) == (1, True)
    config.write_text("port = 'many'\n")
    outcome = millrace(tmp_path, "list")
    assert outcome.returncode == 2
    assert f"`port` in {config}" in outcome.stderr
    for text in ("surprise = 1\n", "port = \n"):
        config.write_text(text)
        outcome = millrace(tmp_path, "list")
        assert (outcome.returncode, "Traceback" in outcome.stderr) == (2, False), outcome.stderr
        assert str(config) in outcome.stderr


def test_the_shell_completes_commands_and_ids(service: Service, tmp_path: Path) -> None:
    job = service.client.submit({"name": "completed"})

    def complete(words: str) -> str:
        number = str(len(words.split()) - 1 + words.endswith(" "))
        environment = {"_MILLRACE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": number}
        return millrace(tmp_path, MILLRACE_SERVER=service.url, **environment).stdout

    assert {"submit", "sweep"} <= set(complete("millrace s").split())
    assert job.id in complete("millrace watch ")
    assert job.id in complete(f"millrace cancel {job.id[:6]}")
    assert job.id not in complete("millrace show zzz")
    assert "--role" in complete("millrace token create --r")


def test_every_command_that_tells_something_can_tell_it_as_json() -> None:
    import typer

    root: Any = typer.main.get_command(build(cli_context(FakeRuns(), Path("runs"))))
    commands = dict(root.commands)
    for group in ("token", "webhook", "projects"):
        commands |= {f"{group} {name}": command for name, command in commands.pop(group).commands.items()}
    without = {
        name
        for name, command in commands.items()
        if not any("--output" in parameter.opts for parameter in command.params)
    }
    assert without == {"init", "schema", "serve"}  # a folder of files; JSON itself; REST
