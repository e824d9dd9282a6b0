"""A day in a team's life: two projects, three users, a sweep, a fork, a quota met, a server killed, a disk full, and in
the evening the audit. On `millrace serve` and a real Ray."""

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api import Client, Refused
from service import Role, State, Store, Tokens
from tests.api.conftest import eventually
from tests.api.http.test_serve import MILLRACE, Serving, using
from tests.conftest import Disk
from tests.service.test_full_disk import fill

MIB = 1024 * 1024
WITHIN_S = 400.0
TRAINING: dict[str, Any] = {"data": "digits", "model": "mlp", "batch": 8, "optimizer": {"name": "momentum", "lr": 0.01}}
SWEEP: dict[str, Any] = {
    "job": TRAINING | {"project": "vision", "workers": 1, "epochs": 30},
    "axes": {"seed": [0, 1, 2]},
}


@dataclass
class Team:
    """Who works with one service."""

    root: Client
    ann: Client
    bob: Client


@contextmanager
def at_work(serving: Serving, tokens: dict[str, str]) -> Iterator[Team]:
    """The team while the server runs."""
    with serving as url, ExitStack() as stack:
        yield Team(*(stack.enter_context(Client(url, token=tokens[name])) for name in ("root", "ann", "bob")))


def made_tokens(state_dir: Path) -> dict[str, str]:
    store = Store.open(f"sqlite:///{state_dir / 'millrace.db'}")
    try:
        tokens, roles = Tokens(store.engine), {"root": Role.admin, "ann": Role.user, "bob": Role.user}
        return {name: tokens.create(name, role)[1] for name, role in roles.items()}
    finally:
        store.close()


def soon(holds: Callable[[], bool]) -> None:
    eventually(holds, WITHIN_S)


def until_vision_is_at_its_quota(team: Team, job: str) -> None:
    """Its two trials hold both CPUs, and the job says why it waits."""
    soon(lambda: team.ann.project("vision").use.cpus == 2)
    soon(lambda: team.ann.get(job).reason == "ProjectQuota")
    assert "project vision has given out 2 of its 2 CPUs, and the job needs 1" in team.ann.get(job).message


def watch_the_quota(team: Team, has_ended: Callable[[], bool]) -> None:
    """Until something has ended, at no time does vision hold more than it may."""

    def ended_within_the_quota() -> bool:
        use = team.root.project("vision").use
        assert use.cpus <= 2
        assert use.jobs <= 2
        return has_ended()

    soon(ended_within_the_quota)


def submit_until_refused(client: Client) -> list[str]:
    """Submit jobs until there is no room for another; those that were taken in."""
    taken_in = list[str]()
    while len(taken_in) < 300:
        job = {"name": f"late-{len(taken_in)}", "project": "speech", "workers": 4, "epochs": 1}
        try:
            taken_in.append(client.submit(TRAINING | job).id)
        except Refused as refused:
            if refused.problem.status == 507:
                return taken_in
            raise
    raise AssertionError("a full disk takes everything in")


def bob_forks(team: Team, long: str) -> str:
    """Bob goes on from a checkpoint with another rate. There is no room for both, so he stops the first."""
    fork = team.bob.fork(long, {"name": "fork", "epochs": 4001, "optimizer": {"lr": 0.001}})
    assert fork.project == "speech"
    with pytest.raises(Refused, match="ann is no member of project speech"):
        team.ann.fork(long, {"epochs": 4001})
    soon(lambda: team.bob.get(fork.id).state is State.QUEUED and team.bob.get(fork.id).place is not None)
    team.bob.cancel(long)
    soon(lambda: team.bob.get(fork.id).state is State.RUNNING)
    return fork.id


def the_disk_is_full(team: Team, disk: Path, fork: str) -> str:
    """Nothing more is taken in, what trains says so, and all can be read; then bob goes on with another fork."""
    filler = fill(disk)
    taken_in = submit_until_refused(team.bob)
    soon(lambda: any(told in team.bob.get(fork).message for told in ("no room", "cannot be written")))
    assert team.ann.get(fork).name == "fork"
    filler.unlink()
    for job_id in taken_in:  # the database had some room of its own left
        team.bob.cancel(job_id)
    soon(lambda: team.bob.get(fork).reason == "DiskFull")
    again = team.bob.fork(fork, {"name": "again"})
    soon(lambda: team.bob.get(again.id).state is State.RUNNING)
    return again.id


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_day_in_the_life_of_a_team(small_disk: Disk, tmp_path: Path) -> None:
    disk = small_disk(400 * MIB)
    state_dir = disk / "state"
    state_dir.mkdir(mode=0o700)
    tokens = made_tokens(state_dir)
    try:
        # In the morning: two projects, of which one has a quota.
        with at_work(killed := Serving(state_dir, 4, "--require-token"), tokens) as team:
            team.root.create_project("vision", members=["ann"], quota={"cpus": 2})
            team.root.create_project("speech", members=["bob"], share=2)
            sweep = team.ann.sweep(SWEEP, "seeds")
            long = team.bob.submit(TRAINING | {"name": "long", "project": "speech", "workers": 2, "epochs": 4000})
            with pytest.raises(Refused, match="bob is no member of project vision"):
                team.bob.submit(TRAINING | {"project": "vision"})
            soon(lambda: team.ann.project("vision").use.cpus == 2)
            waits = team.ann.submit(TRAINING | {"name": "waits", "project": "vision", "workers": 1, "epochs": 2}, "k")
            until_vision_is_at_its_quota(team, waits.id)
            soon(lambda: bool([*team.bob.checkpoints(long.id)]))
            assert [one.name for one in team.bob.list(project="speech")] == ["long"]

            # At noon the server is killed.
            killed.process.kill()
            killed.process.wait(60)

        with at_work(Serving(state_dir, 4, "--require-token"), tokens) as team:
            assert team.ann.submit(
                TRAINING | {"name": "waits", "project": "vision", "workers": 1, "epochs": 2}, "k"
            ).id == waits.id, "sent again with its key, it is the same job"  # fmt: skip
            assert team.ann.sweep(SWEEP, "seeds").id == sweep.id
            assert team.root.project("vision").quota.cpus == 2
            assert team.bob.get(long.id).state in (State.RUNNING, State.RECOVERING)

            fork = bob_forks(team, long.id)
            watch_the_quota(team, lambda: team.ann.get_sweep(sweep.id).state.is_terminal)
            watch_the_quota(team, lambda: team.ann.get(waits.id).state.is_terminal)
            assert team.ann.get_sweep(sweep.id).trials["succeeded"] == 3
            assert team.ann.get(waits.id).state is State.SUCCEEDED
            assert team.bob.get(long.id).state is State.CANCELLED
            again = the_disk_is_full(team, disk, fork)

            # In the evening everything has ended.
            team.bob.cancel(again)
            soon(lambda: team.bob.get(again).state is State.CANCELLED)
            soon(lambda: team.root.project("speech").use.jobs == 0)
            assert_audit(team)
    finally:
        folder = json.loads((state_dir / "cluster.json").read_text())["temp_dir"]
        stop = [str(MILLRACE), "serve", "--stop-cluster", "--state-dir", str(state_dir)]
        subprocess.run(stop, capture_output=True, check=False, timeout=120)
    assert using(folder) == []


def assert_audit(team: Team) -> None:
    """It tells who did what, and what nobody was let do; the server's death took nothing away."""
    told = [(one.user, one.action, one.status) for one in team.root.audit()][::-1]
    assert told[:6] == [
        ("local", "token.create", 202), ("local", "token.create", 202), ("local", "token.create", 202),
        ("root", "project.create", 201), ("root", "project.create", 201), ("ann", "sweep.submit", 202),
    ]  # fmt: skip
    counted = Counter(told)
    assert counted["ann", "job.submit", 202] == counted["ann", "sweep.submit", 202] == 1, "a repeated request is none"
    assert counted["bob", "job.submit", 403] == counted["ann", "job.fork", 403] == 1
    assert counted["bob", "job.fork", 202] == 2
    assert counted["bob", "job.cancel", 202] >= 2
    with pytest.raises(Refused):
        next(team.bob.audit())
