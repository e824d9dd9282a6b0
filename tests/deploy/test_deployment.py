"""Compose, Ray cluster file and Kubernetes manifests, as far as a machine without Docker and Kubernetes can tell."""

import copy
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import jsonschema  # type: ignore[import-untyped]
import pytest
import ray
import yaml

from deploy.settings import Settings
from service import NodeGroup
from tests.deploy.schemas import KINDS
from tests.docs.readme import ROOT
from tests.docs.test_pages import cli

DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
STATE = "/var/lib/millrace"
TOOLS = Path(sys.executable).parent
COMMAND = re.compile(r"(?:^|&& |; |exec )((?:ray|millrace) [^;&>]*)")


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def manifests(folder: str) -> dict[str, Any]:
    """The objects of a kustomization, by file; those of folders in it too."""
    found: dict[str, Any] = {}
    for name in read(f"{folder}/kustomization.yaml")["resources"]:
        if (DEPLOY / folder / name).is_dir():
            found |= {f"{name}/{file}": one for file, one in manifests(f"{folder}/{name}").items()}
        else:
            found[name] = read(f"{folder}/{name}")
    return found


COMPOSE = read("compose.yaml")
CLUSTER = read("ray-cluster.yaml")
MANIFESTS = manifests("kubernetes")
RAY_CLUSTER = MANIFESTS["cluster.yaml"]["spec"]
GROUPS = {group["groupName"]: group for group in RAY_CLUSTER["workerGroupSpecs"]}


def container(group: str) -> dict[str, Any]:
    (found,) = GROUPS[group]["template"]["spec"]["containers"]
    return dict(found)


def test_every_yaml_is_well_formed() -> None:
    done = subprocess.run(
        [TOOLS / "yamllint", "--strict", "deploy", "tests"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


# -- Compose ----------------------------------------------------------------------------------------------------------


def test_compose_follows_the_compose_specification(tmp_path: Path) -> None:
    check = [TOOLS / "check-jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, DEPLOY / "compose.yaml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.yaml").write_text((DEPLOY / "compose.yaml").read_text().replace("healthcheck:", "healthcheque:"))
    assert subprocess.run([*check, tmp_path / "wrong.yaml"], capture_output=True, check=False).returncode == 1


def test_compose_runs_one_image_and_what_watches_it() -> None:
    services = COMPOSE["services"]
    assert set(services) == {"ray-token", "head", "worker", "service", "prometheus", "grafana"}
    ours = ("ray-token", "head", "worker", "service")
    assert {services[name]["image"] for name in ours} == {"millrace"}
    for name in ours:
        assert f"state:{STATE}" in services[name]["volumes"]  # checkpoints are written where the workers are
        assert services[name]["shm_size"] == "2gb"
        assert services[name]["init"] is True
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"MILLRACE_STATE_DIR={STATE}" in dockerfile
    for name in services["head"]["build"]["args"]:
        assert f"ARG {name}" in dockerfile


def test_compose_is_reached_from_this_machine_only() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert len(ports) == 4
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_what_is_there_where_it_is_looked_for() -> None:
    mounts = [v for s in COMPOSE["services"].values() for v in s.get("volumes", []) if v.startswith("./")]
    mounted = {target: source for source, target, _ in (mount.split(":") for mount in mounts)}
    assert all((DEPLOY / source).exists() for source in mounted.values())
    assert mounted["/etc/prometheus/prometheus.yml"] == "./prometheus/cluster.yml"
    (provider,) = read("grafana/provisioning/dashboards/millrace.yaml")["providers"]
    assert mounted[provider["options"]["path"]] == "./grafana/dashboards"
    assert mounted["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    (variable,) = re.findall(r"\$\{(\w+)\}", source["url"])
    assert COMPOSE["services"]["grafana"]["environment"][variable] == "http://prometheus:9090"


def test_prometheus_in_compose_asks_the_same_with_a_token() -> None:
    local, cluster = read("prometheus/prometheus.yml"), read("prometheus/cluster.yml")
    token = {"credentials_file": "/run/secrets/viewer_token"}
    assert COMPOSE["services"]["prometheus"]["secrets"] == ["viewer_token"]
    service, nodes = local["scrape_configs"]
    service["static_configs"] = [{"targets": ["service:8466"]}]
    service["authorization"] = token
    (discovery,) = nodes["http_sd_configs"]
    discovery["url"] = "http://service:8466/metrics/nodes"
    discovery["authorization"] = token
    assert cluster == local


@pytest.mark.skipif(shutil.which("promtool") is None, reason="there is no promtool")
def test_prometheus_in_compose_is_well_configured(tmp_path: Path) -> None:
    text = (DEPLOY / "prometheus" / "cluster.yml").read_text()
    (tmp_path / "token").write_text("x")
    (tmp_path / "prometheus.yml").write_text(text.replace("/run/secrets/viewer_token", str(tmp_path / "token")))
    shutil.copy(DEPLOY / "prometheus" / "rules.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- the Ray cluster file ---------------------------------------------------------------------------------------------


def test_the_cluster_file_follows_rays_schema() -> None:
    schema = json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text())
    jsonschema.validate(CLUSTER, schema)
    wrong = copy.deepcopy(CLUSTER) | {"max_wrokers": 2}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema)


def test_ray_itself_takes_the_cluster_file() -> None:
    """Filled in and checked as `ray up` does."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(copy.deepcopy(CLUSTER))
    validate_config(config)
    assert len(CLUSTER["provider"]["worker_ips"]) == CLUSTER["max_workers"]
    assert f"--volume={STATE}:{STATE}" in [option.split("  ")[0] for option in CLUSTER["docker"]["run_options"]]


# -- Kubernetes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_has_only_fields_that_exist(name: str) -> None:
    manifest = MANIFESTS[name]
    jsonschema.validate(manifest, KINDS[manifest["kind"]])


def test_a_field_that_does_not_exist_is_noticed() -> None:
    wrong = copy.deepcopy(MANIFESTS["cluster.yaml"])
    wrong["spec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, KINDS["RayCluster"])


def test_the_cluster_grows_with_its_jobs_and_shrinks_to_nothing() -> None:
    assert RAY_CLUSTER["enableInTreeAutoscaling"] is True
    assert {name: (group["minReplicas"], group["maxReplicas"]) for name, group in GROUPS.items()} == {
        "service": (1, 1), "cpu": (0, 8), "gpu": (0, 4),
    }  # fmt: skip
    assert RAY_CLUSTER["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert GROUPS["service"]["rayStartParams"]["num-cpus"] == "0"
    assert "nvidia.com/gpu" in container("gpu")["resources"]["limits"]
    assert RAY_CLUSTER["rayVersion"] == metadata.version("ray")


def test_the_service_is_told_how_far_the_cluster_grows() -> None:
    """Or it would refuse every job, since a cluster without jobs has no worker."""
    (told,) = [one["value"] for one in container("service")["env"] if one["name"] == "MILLRACE_GROWS_TO"]
    groups = [
        {"nodes": group["maxReplicas"]} | {name: int(amount) for name, amount in limits.items() if name != "memory"}
        for group in GROUPS.values()
        if group["groupName"] != "service"
        for limits in [container(group["groupName"])["resources"]["limits"]]
    ]
    words = {"nodes": "nodes", "cpu": "cpus", "nvidia.com/gpu": "gpus"}
    expected = [{words[name]: amount for name, amount in group.items()} for group in groups]
    assert json.loads(told) == expected
    assert Settings(grows_to=json.loads(told)).grows_to == [NodeGroup(**group) for group in expected]


def test_every_pod_shares_the_state_and_has_shared_memory_enough() -> None:
    for group in (RAY_CLUSTER["headGroupSpec"], *GROUPS.values()):
        pod = group["template"]["spec"]
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        (only,) = pod["containers"]
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in only["volumeMounts"]}
        claim = MANIFESTS["storage.yaml"]["metadata"]["name"]
        assert mounts[STATE]["persistentVolumeClaim"]["claimName"] == claim
        assert mounts["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "2Gi"}
        assert only["image"] == "millrace"


def test_the_service_is_found_by_its_labels_and_port() -> None:
    spec = MANIFESTS["service.yaml"]["spec"]
    assert spec["selector"] == {
        "ray.io/cluster": MANIFESTS["cluster.yaml"]["metadata"]["name"],
        "ray.io/group": "service",
    }
    (port,) = spec["ports"]
    assert {"name": port["targetPort"], "containerPort": port["port"]} in container("service")["ports"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_kustomize_builds_what_is_there() -> None:
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES], capture_output=True, text=True, check=False)
    if "unknown command" in done.stderr:
        pytest.skip("this kubectl has no kustomize")
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {one["kind"] for one in built} == {one["kind"] for one in MANIFESTS.values()}
    for one in built:
        jsonschema.validate(one, KINDS[one["kind"]])
    assert "image: millrace:latest" in done.stdout
    assert "image: millrace\n" not in done.stdout


# -- the commands in them ---------------------------------------------------------------------------------------------


def commands() -> Iterator[list[str]]:
    """The words of every `ray` and `millrace` command that something here runs."""
    lines = []
    for service in COMPOSE["services"].values():
        words = service.get("command", [])
        lines.append(words[-1] if words[:2] == ["sh", "-c"] else shlex.join(words))
    lines += [*CLUSTER["head_start_ray_commands"], *CLUSTER["worker_start_ray_commands"]]
    (job,) = MANIFESTS["token.yaml"]["spec"]["template"]["spec"]["containers"]
    lines += [job["command"][-1], *container("service")["args"]]
    lines += re.findall(r"'(millrace [^']*)'", (DEPLOY / "ray-cluster.yaml").read_text())
    for line in lines:
        for command in COMMAND.findall(line):
            yield shlex.split(command)


COMMANDS = list(commands())


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_and_its_options_exist(words: list[str]) -> None:
    """Parsed as the program itself would, to the last word; nothing is run."""
    if words[0] == "ray":
        from ray.scripts.scripts import cli as root
    else:
        root = cli()
    if words[:2] == ["millrace", "token"] and "token" not in root.commands:
        pytest.skip("this millrace has no tokens")
    name, command, rest = root.resolve_command(click.Context(root), words[1:])
    assert command is not None, f"there is no command {name!r}"
    command.make_context(name, rest)


def test_the_commands_are_found() -> None:
    assert [words[:2] for words in COMMANDS].count(["millrace", "serve"]) == 3
    assert [words[:2] for words in COMMANDS].count(["ray", "start"]) == 5
    assert ["millrace", "token"] in [words[:2] for words in COMMANDS]


def test_options_of_kuberays_groups_exist() -> None:
    from ray.scripts.scripts import start

    known = {option.lstrip("-") for parameter in start.params for option in parameter.opts}
    for group in (RAY_CLUSTER["headGroupSpec"], *GROUPS.values()):
        assert set(group["rayStartParams"]) <= known


@pytest.mark.parametrize("args", [c["args"][0] for c in map(container, GROUPS)], ids=list(GROUPS))
def test_what_a_pod_runs_is_a_shell_command(args: str) -> None:
    subprocess.run(["bash", "-n", "-c", args], check=True)
    assert "$KUBERAY_GEN_RAY_START_CMD" in args
