"""The database of the Kubernetes manifests: who makes its password, and who gets it."""

import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import certifi
import pytest
from sqlalchemy.engine import make_url

from tests.deploy.test_deployment import GROUPS, MANIFESTS, RAY_CLUSTER, container

SECRET = {"name": "millrace-database", "key": "password"}
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def the(manifest: str) -> dict[str, Any]:
    """A manifest's only container."""
    (only,) = MANIFESTS[manifest]["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(of: dict[str, Any]) -> dict[str, Any]:
    """What a container is given, by name."""
    return {one["name"]: one.get("value") or one["valueFrom"]["secretKeyRef"] for one in of.get("env", [])}


class Kubernetes(BaseHTTPRequestHandler):
    """Takes in a secret once, as Kubernetes does."""

    asked: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []
    others: ClassVar[int] = 0
    """What it answers, if not that."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.others or (409 if self.asked else 201))
        self.end_headers()
        self.asked.append((self.path, self.headers["Authorization"], body))

    def log_message(self, *_: object) -> None:
        pass


def test_the_password_is_made_the_first_time_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's own program, against a server that answers as Kubernetes does."""
    (tmp_path / "namespace").write_text("training")
    (tmp_path / "token").write_text("the token")
    shutil.copy(certifi.where(), tmp_path / "ca.crt")
    python, option, program = the("database/secret.yaml")["command"]
    assert (python, option) == ("python", "-c")
    with HTTPServer(("127.0.0.1", 0), Kubernetes) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert ACCOUNT in program
        here = program.replace(ACCOUNT, str(tmp_path)).replace("https://kubernetes.default.svc", address)
        run = [sys.executable, "-c", here]
        free = {**os.environ, "no_proxy": "*"}
        for _ in range(2):
            subprocess.run(run, check=True, env=free)
        monkeypatch.setattr(Kubernetes, "others", 403)
        assert (
            subprocess.run(run, check=False, capture_output=True, env=free).returncode == 1
        )  # and the job tries again
        server.shutdown()
    (path, bearer, secret), *_ = Kubernetes.asked
    assert path == "/api/v1/namespaces/training/secrets"
    assert bearer == "Bearer the token"
    assert secret["metadata"]["name"] == SECRET["name"]
    passwords = [body["stringData"][SECRET["key"]] for *_, body in Kubernetes.asked]
    assert min(map(len, passwords)) >= 43
    assert len(set(passwords)) == 3


def test_whoever_makes_it_may_do_nothing_else() -> None:
    (rule,) = MANIFESTS["database/role.yaml"]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["secrets"], ["create"])
    account = MANIFESTS["database/account.yaml"]["metadata"]["name"]
    assert [one["name"] for one in MANIFESTS["database/binding.yaml"]["subjects"]] == [account]
    assert MANIFESTS["database/binding.yaml"]["roleRef"]["name"] == MANIFESTS["database/role.yaml"]["metadata"]["name"]
    assert MANIFESTS["database/secret.yaml"]["spec"]["template"]["spec"]["serviceAccountName"] == account


def test_the_service_and_the_first_token_are_in_the_database_and_no_worker_knows_its_password() -> None:
    database = environment(the("database/database.yaml"))
    assert database["POSTGRES_PASSWORD"] == SECRET
    for client in (container("service"), the("token.yaml")):
        given = environment(client)
        url = make_url(given["MILLRACE_DATABASE"])
        assert url.host == MANIFESTS["database/service.yaml"]["metadata"]["name"]
        assert (url.username, url.database) == (database["POSTGRES_USER"], database["POSTGRES_DB"])
        assert url.password is None
        assert given["PGPASSWORD"] == SECRET
    (head,) = RAY_CLUSTER["headGroupSpec"]["template"]["spec"]["containers"]
    for other in (head, *(container(group) for group in GROUPS if group != "service")):
        assert "PGPASSWORD" not in environment(other)


def test_the_database_is_reached_by_those_two_only() -> None:
    labels = MANIFESTS["database/database.yaml"]["spec"]["template"]["metadata"]["labels"]
    selectors = [
        MANIFESTS["database/network.yaml"]["spec"]["podSelector"]["matchLabels"],
        MANIFESTS["database/service.yaml"]["spec"]["selector"],
        MANIFESTS["database/database.yaml"]["spec"]["selector"]["matchLabels"],
    ]
    assert all(selector.items() <= labels.items() for selector in selectors)
    (rule,) = MANIFESTS["database/network.yaml"]["spec"]["ingress"]
    allowed = [one["podSelector"]["matchLabels"] for one in rule["from"]]
    token = MANIFESTS["token.yaml"]["spec"]["template"]["metadata"]["labels"]
    name = MANIFESTS["cluster.yaml"]["metadata"]["name"]
    service = {"ray.io/cluster": name, "ray.io/group": "service"}
    assert service in allowed
    assert any(one.items() <= token.items() for one in allowed)
    assert len(allowed) == 2
    others = [{"ray.io/cluster": name, "ray.io/group": group} for group in GROUPS if group != "service"]
    assert not any(one.items() <= other.items() for one in allowed for other in others)
