"""Every rule of safety, and somebody who tries to break it."""

import ast
import itertools
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import yaml

from api import CannotServe, bind, is_exposed
from api.http.auth import LOGIN, OWN_TOKEN, demanded
from deploy.settings import Settings
from deploy.tokens import has_token, opened_tokens
from service import Role, parse_sweep, plain_yaml
from service.status import Status
from service.sweeps import control
from tests.api.conftest import Service
from tests.api.http.test_routes import refused
from trainers import State

ROOT = Path(__file__).parents[3]
IDS = {"job_id": "nosuchjob", "sweep_id": "sweep-none", "name": "x.png", "step": "1", "file": "x"}
Serve = Callable[..., Service]


@pytest.fixture
def guarded(serve: Serve) -> Service:
    return serve(is_required=True)


def every_route(service: Service) -> list[tuple[str, str]]:
    """Method and address of all that the API's own description names."""
    paths = service.http.get("/openapi.json").json()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() for method in methods]
    return [(method, re.sub(r"{(\w+)}", lambda match: IDS.get(match[1], "x"), path)) for method, path in found]


# -- tokens and roles ---------------------------------------------------------------------------------------------


def test_every_route_demands_a_token_and_a_role(guarded: Service) -> None:
    routes = every_route(guarded)
    assert len(routes) >= 25
    viewer, user, admin = (guarded.bearer(role) for role in Role)
    for method, path in routes:
        role = demanded(method, path)
        if role is None:
            assert path in ("/healthz", "/readyz", "/v1/sign-in", LOGIN)
            continue
        if path == OWN_TOKEN:
            continue  # it would end the tokens of this test
        answer = guarded.http.request(method, path)
        assert refused(answer, 401) == ["/header/Authorization"], path
        assert answer.headers["www-authenticate"] == "Bearer"
        for headers, own in ((viewer, Role.viewer), (user, Role.user), (admin, Role.admin)):
            with guarded.http.stream(method, path, headers=headers) as answer:  # what it says otherwise is not asked
                assert (answer.status_code == 403) == (not own.covers(role)), (method, path, own)
                assert answer.status_code != 401
    assert {demanded(method, path) for method, path in routes} >= {None, Role.viewer, Role.user}


def test_reading_never_changes_and_changing_is_never_for_viewers(guarded: Service) -> None:
    for method, path in every_route(guarded):
        assert method == "GET" or path in (OWN_TOKEN, LOGIN) or demanded(method, path) in (Role.user, Role.admin), path


def test_a_route_that_nobody_thought_of_is_closed() -> None:
    assert demanded("GET", "/v1/something/new") is Role.viewer
    assert demanded("PATCH", "/anything") is Role.user
    assert demanded("POST", "/healthz") is Role.user
    assert demanded("GET", "/healthz/../v1/jobs") is Role.viewer


@pytest.mark.parametrize(
    "value",
    ["Bearer", "Bearer mlr_x_y", "Basic YWRtaW46YWRtaW4=", "bearer null", "Token x", "Bearer a b"],
)
def test_a_wrong_token_is_refused_even_where_none_is_needed(shared: Service, value: str) -> None:
    answer = shared.http.get("/v1/jobs", headers={"Authorization": value})
    assert refused(answer, 401) == ["/header/Authorization"]
    assert "millrace token create" in answer.json()["remedy"]


def test_a_revoked_token_is_refused_at_once(guarded: Service) -> None:
    token, text = guarded.tokens.create("ann", Role.user)
    headers = {"Authorization": f"Bearer {text}"}
    assert guarded.http.get("/v1/me", headers=headers).json() == {
        "user": "ann", "role": "user", "token": token.id, "session": False, "projects": [], "expires": None
    }  # fmt: skip
    guarded.tokens.revoke(token.id)
    assert refused(guarded.http.get("/v1/me", headers=headers), 401) == ["/header/Authorization"]


def test_the_token_in_an_address_does_not_count(guarded: Service) -> None:
    text = guarded.tokens.create("ann", Role.admin)[1]
    for name in ("token", "access_token", "authorization"):
        assert guarded.http.get("/v1/jobs", params={name: text}).status_code == 401
        assert guarded.http.get("/v1/jobs", headers={"Cookie": f"{name}={text}"}).status_code == 401


def test_on_loopback_no_token_is_needed(service: Service) -> None:
    me = service.http.get("/v1/me").json()
    assert (me["user"], me["role"], me["token"]) == ("local", "admin", None)
    told = service.http.get("/v1/me", headers=service.bearer("viewer")).json()
    assert (told["user"], told["role"], bool(told["token"])) == ("ann", "viewer", True)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "2001:db8::1"])
def test_beyond_loopback_nothing_listens_unguarded(host: str) -> None:
    assert is_exposed(host)
    with pytest.raises(CannotServe, match="millrace token create"):
        bind(host, 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_not_exposed(host: str) -> None:
    assert not is_exposed(host)


def test_a_name_is_no_address_to_listen_on() -> None:
    with pytest.raises(CannotServe, match="no IP address"):
        is_exposed("example.org")


def test_whether_anybody_could_come_in(tmp_path: Path) -> None:
    assert not has_token(Settings(), tmp_path / "state")
    assert not (tmp_path / "state").exists()
    with opened_tokens(Settings(), tmp_path / "state") as tokens:
        token, _ = tokens.create("ann", Role.admin)
    assert has_token(Settings(), tmp_path / "state")
    with opened_tokens(Settings(), tmp_path / "state") as tokens:
        tokens.revoke(token.id)
    assert not has_token(Settings(), tmp_path / "state")


# -- pages from elsewhere -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8466", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1", "", "["],
)
def test_a_name_that_was_pointed_here_gets_no_answer(shared: Service, host: str) -> None:
    for method, path in (("GET", "/v1/jobs"), ("POST", "/v1/jobs"), ("GET", "/openapi.json")):
        assert refused(shared.http.request(method, path, headers={"Host": host}), 403) == ["/header/Host"]
    assert shared.runs.runs == {}


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1", "[::1]:8466", "LOCALHOST"])
def test_this_machines_names_get_one(shared: Service, host: str) -> None:
    assert shared.http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_page_from_elsewhere_cannot_post_a_job(shared: Service, headers: dict[str, str]) -> None:
    for content_type in ("application/json", "text/plain", "application/x-www-form-urlencoded", ""):
        sent = {**headers, "Content-Type": content_type}
        assert refused(shared.http.post("/v1/jobs", content=b"{}", headers=sent), 403) == ["/header/Origin"]
    assert shared.http.get("/v1/jobs").json()["jobs"] == []


def test_our_own_page_can(service: Service) -> None:
    headers = {"Origin": service.url, "Sec-Fetch-Site": "same-origin"}
    assert service.http.post("/v1/jobs", json={}, headers=headers).status_code == 202


def test_no_page_is_told_that_it_may_read(shared: Service) -> None:
    answer = shared.http.options("/v1/jobs", headers={"Access-Control-Request-Method": "POST"})
    assert refused(answer, 405) == []
    for got in (answer, shared.http.get("/v1/jobs")):
        assert not [name for name in got.headers if name.startswith("access-control")]


def test_what_users_wrote_is_shown_as_what_it_is(service: Service) -> None:
    job = service.client.submit({"labels": {"a": "<script>alert(1)</script>"}})
    service.started(job.id).emit("log", level="info", message="<script>alert(1)</script>")
    for path in (f"/v1/jobs/{job.id}", f"/v1/jobs/{job.id}/logs", "/v1/jobs", "/v1/jobs/nosuchjob"):
        answer = service.http.get(path)
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert not answer.headers["content-type"].startswith("text/html")


# -- code of the caller's own -------------------------------------------------------------------------------------

CODE = [
    ({"model": "evil:make"}, ["/model/name"]),
    ({"data": {"name": "evil:load"}}, ["/data/name"]),
    ({"data": "ray:evil:load"}, ["/data/name"]),
    ({"task": "evil:Task", "model": "mlp"}, ["/task/name"]),
    ({"code": "/tmp"}, ["/code"]),
    ({"code": "", "model": "evil:make", "data": "evil:load"}, ["/code", "/data/name", "/model/name"]),
]


@pytest.mark.parametrize(("spec", "pointers"), CODE)
def test_own_code_is_for_roles_that_may(
    serve: Serve, spec: dict[str, object], pointers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    strict, loose = serve(is_required=True), serve(is_required=True, code_role=Role.user)
    for query in ("", "?dry_run=true"):
        answer = strict.http.post(f"/v1/jobs{query}", json=spec, headers=strict.bearer("user"))
        assert refused(answer, 403) == pointers
        assert "/v1/models" in answer.json()["remedy"]
    assert strict.http.post("/v1/jobs", json=spec, headers=strict.bearer("admin")).status_code == 202
    assert loose.http.post("/v1/jobs", json=spec, headers=loose.bearer("user")).status_code == 202
    assert loose.http.post("/v1/jobs", json=spec, headers=loose.bearer("viewer")).status_code == 403
    assert "evil" not in sys.modules  # never in the service's process
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "sweep",
    [
        {"job": {"model": "evil:make"}, "axes": {"seed": [0]}},
        {"job": {}, "axes": {"model": ["mlp", "evil:make"]}},
        {"job": {}, "axes": {"model.name": ["mlp", "evil:make"]}},
        {"job": {}, "axes": {"data": ["digits", {"name": "evil:load"}]}},
        {"job": {}, "axes": {" data.name": ["evil:load"]}},
        {"job": {}, "axes": {"task": ["classification", "evil:Task"]}},
        {"job": {}, "axes": {"code": ["/tmp"]}},
        {"job": {}, "axes": {"seed": [0, 1], "model": ["mlp", "evil:make"]}, "search": {"name": "random"}},
    ],
)
def test_a_sweep_is_no_way_around(serve: Serve, sweep: dict[str, object]) -> None:
    service = serve(is_required=True)
    pointers = refused(service.http.post("/v1/sweeps", json=sweep, headers=service.bearer("user")), 403)
    assert len(pointers) == 1
    assert pointers[0].startswith(("/job/", "/axes/"))


# -- sizes, forms, names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sweeps", "/v1/sweeps/sweep-x/extend", "/v1/jobs/x/cancel"])
def test_a_body_has_a_bound(shared: Service, path: str) -> None:
    def endless() -> "itertools.chain[bytes]":
        return itertools.chain([b'{"labels": {"a": "'], (b"x" * 65536 for _ in range(64)))

    assert refused(shared.http.post(path, content=b"x" * 2_000_000), 413) == []
    if "cancel" not in path:  # which reads none
        headers = {"Content-Type": "application/json"}
        assert refused(shared.http.post(path, content=endless(), headers=headers), 413) == []


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
MERGES = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 40))
SPECS = [
    (BOMB, "each alias counted"),
    ("axes: &a {b: [*a]}\njob: {}\n", "each alias counted"),
    ("axes: {seed: [.nan]}", "write a finite one"),
    ('labels: {a: "x\\0"}', "NUL"),
    ("[" * 120_000, "nested more than 100 deep"),
    ("- " * 120_000, "nested more than 100 deep"),
    (f"[{'x, ' * 60_000}]", "at most 10000 values"),
    (MERGES, "more than 10000 values"),
    ("!!python/object/apply:os.system ['true']", "not valid YAML"),
    ("!!python/name:os.system", "not valid YAML"),
]


@pytest.mark.parametrize(
    ("body", "told"), SPECS, ids=["bomb", "circle", "nan", "nul", "deep", "deep list", "many", "merges", "call", "name"]
)
def test_a_spec_that_would_hurt_when_read(shared: Service, body: str, told: str) -> None:
    for path in ("/v1/jobs", "/v1/sweeps"):
        answer = shared.http.post(path, content=body.encode(), headers={"Content-Type": "application/yaml"})
        assert refused(answer, 422) == [""]
        assert told in answer.json()["detail"]


def test_no_pickle_comes_in(shared: Service) -> None:
    for kind in ("application/octet-stream", "application/x-pickle", "application/python-pickle"):
        answer = shared.http.post("/v1/jobs", content=b"\x80\x04.", headers={"Content-Type": kind})
        assert refused(answer, 415) == []


def test_nothing_in_the_service_could_run_what_it_is_given() -> None:
    never = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}
    for path in (path for package in ("service", "api", "deploy") for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not never & {name.partition(".")[0] for name in imported}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), path
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("yaml.load", "yaml.unsafe_load"):
                assert "Loader=_Loader" in ast.unparse(node), path
    assert issubclass(plain_yaml._Loader, yaml.constructor.SafeConstructor)


@pytest.mark.parametrize(
    "name",
    ["..", "../..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%2fetc%2fpasswd", "sweep-..%2f..%2fx", "x%00", "x" * 5000],
)
def test_no_name_leaves_the_store(shared: Service, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("secret")
    jobs = (f"/v1/jobs/{name}", f"/v1/jobs/{name}/events", f"/v1/jobs/{name}/logs")
    sweeps = (f"/v1/sweeps/{name}", f"/v1/sweeps/{name}/report", f"/v1/sweeps/sweep-{name}")
    for path in (*jobs, *sweeps, f"/v1/sweeps/sweep-x/figures/{name}"):
        answer = raw_get(shared, path)
        assert re.match(rb"HTTP/1.1 (404|307)", answer), (path, answer[:200])
        assert b"secret" not in answer


def raw_get(service: Service, path: str) -> bytes:
    """The answer to an address exactly as it is written; a client would tidy it up."""
    url = httpx2.URL(service.url)
    with socket.create_connection((url.host, url.port or 0), timeout=60) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


@pytest.mark.parametrize("name", ["../../etc", "a/b", "..", ".hidden", "a\nb", "<img onerror=x>", "x" * 64])
def test_no_job_has_a_name_that_is_a_path(shared: Service, name: str) -> None:
    assert refused(shared.http.post("/v1/jobs", json={"name": name}), 422) == ["/name"]


def test_every_refusal_says_what_to_change(shared: Service) -> None:
    tries = [
        shared.http.get("/v1/jobs/nosuchjob"),
        shared.http.get("/v1/sweeps/nosuch"),
        shared.http.delete("/v1/jobs"),
        shared.http.get("/nowhere"),
        shared.http.post("/v1/jobs", json={"epochs": "many"}),
        shared.http.post("/v1/jobs", json={"workers": 99}),
        shared.http.post("/v1/jobs", content=b"x", headers={"Content-Type": "text/xml"}),
        shared.http.post("/v1/jobs", content=b"x" * 400_000),
        shared.http.get("/v1/jobs", headers={"Authorization": "Bearer no"}),
        shared.http.get("/v1/jobs?page_size=0"),
        shared.http.post("/v1/sweeps/sweep-x/extend", json={"axes": 3}),
    ]
    for answer in tries:
        assert 400 <= answer.status_code < 500
        assert len(answer.json()["remedy"]) > 10, answer.text
    assert refused(tries[-1], 422) == ["/axes"]


# -- whose a job is -----------------------------------------------------------------------------------------------


def test_a_job_is_its_users_own(guarded: Service) -> None:
    ann, bob, root = guarded.bearer("user"), guarded.bearer("user", "bob"), guarded.bearer("admin", "root")
    job = guarded.http.post("/v1/jobs", json={}, headers=ann).json()
    assert job["user"] == "ann"
    for verb in ("cancel", "pause", "resume"):
        answer = guarded.http.post(f"/v1/jobs/{job['id']}/{verb}", headers=bob)
        assert refused(answer, 403) == []
        assert "ann" in answer.json()["remedy"]
    assert guarded.http.get(f"/v1/jobs/{job['id']}", headers=bob).status_code == 200
    key = {"Idempotency-Key": "the same"}
    ids = {guarded.http.post("/v1/jobs", json={}, headers=who | key).json()["id"] for who in (ann, bob, ann, bob)}
    assert len(ids) == 2  # a key belongs to its user
    assert guarded.http.post(f"/v1/jobs/{job['id']}/cancel", headers=root).status_code == 202


def test_a_sweep_is_its_users_own(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "sweeps" / "sweep-own"
    store = control.begin(folder, folder.name, parse_sweep({"job": {}, "axes": {"seed": [0]}}), user="ann")
    store.close(Status(State.CANCELLED, "Told", "told by a test"), with_queued=True)  # so that nobody drives it
    service = serve(is_required=True)
    ann, bob, root = service.bearer("user"), service.bearer("user", "bob"), service.bearer("admin", "root")
    assert service.http.get("/v1/sweeps/sweep-own", headers=bob).json()["user"] == "ann"
    for verb in ("cancel", "pause", "resume", "extend"):
        path, body = f"/v1/sweeps/sweep-own/{verb}", {"json": {"axes": {}}} if verb == "extend" else {}
        assert refused(service.http.post(path, headers=bob, **body), 403) == []
    for own in (ann, root):
        assert refused(service.http.post("/v1/sweeps/sweep-own/pause", headers=own), 409) == []


def test_a_fork_is_no_way_to_code_that_one_may_not_run(guarded: Service) -> None:
    admin, user = guarded.bearer("admin"), guarded.bearer("user")
    job = guarded.http.post("/v1/jobs", json={"model": "evil:make"}, headers=admin).json()
    folder = guarded.started(job["id"]).run_dir / "checkpoints" / "00000001"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "optimizer.safetensors", "position.json"):
        (folder / name).write_text("{}")
    for changes in ({}, {"epochs": 9}):
        answer = guarded.http.post(f"/v1/jobs/{job['id']}/fork", json=changes, headers=user)
        assert answer.status_code in (403, 409), answer.text
    assert len(guarded.runs.runs) == 1
