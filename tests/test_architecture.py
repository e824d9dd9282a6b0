"""The rules of the house that import-linter cannot say."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import trainers.algorithms
from trainers.algorithms import CONFIGS

ROOT = Path(__file__).parents[1]
SHARED = {
    "all_reduce", "base", "config", "delta_options", "delta_pushes", "divided", "gradients", "local_step",
    "local_steps", "rounds", "traits",
}  # fmt: skip
"""What algorithms may import from the folder that they share."""


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_algorithms_never_import_one_another() -> None:
    folders = [path for path in (ROOT / "trainers/algorithms").iterdir() if (path / "__init__.py").is_file()]
    assert len(folders) >= 3
    for path in (path for folder in folders for path in folder.glob("*.py")):
        own = {name.split(".")[2] for name in imported(path) if name.startswith("trainers.algorithms.")}
        assert own <= SHARED | {path.parent.name}, f"{path} imports {own}"


def test_every_folder_of_algorithms_is_an_algorithm_of_the_spec() -> None:
    names = {module.name for module in pkgutil.iter_modules(trainers.algorithms.__path__)} - SHARED
    assert names == {config.__module__.split(".")[2] for config in CONFIGS.values()}
    assert all(config.source for config in CONFIGS.values())


def test_ray_lives_in_the_runtime_only() -> None:
    for path in (ROOT / "trainers").rglob("*.py"):
        if "runtime" not in path.parts:
            assert not any(name == "ray" or name.startswith("ray.") for name in imported(path)), path


def test_spec_service_doors_and_coordinator_load_no_torch() -> None:
    """One process imports them one after the other, and says after which there was torch."""
    modules = ("trainers", "trainers.spec", "service", "api", "deploy.main", "trainers.runtime.coordinator")
    program = (
        "import importlib, sys\n"
        f"for name in {modules}:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} loads torch')\n"
    )
    found = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (0, "")


def test_a_shard_loads_neither_data_nor_models() -> None:
    """It is started in place of a dead one while workers wait for it."""
    program = "import sys, trainers.training.shard_setup; sys.exit('trainers.data.datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_a_command_that_asks_a_service_loads_no_database_and_no_numbers() -> None:
    """They would take most of the time of `millrace list`."""
    program = "import sys, service, api.client.client, api.cli.actions.jobs; service.JobSummary; service.certificates()"
    program += "; print(*({'torch', 'ray', 'numpy', 'scipy', 'sqlalchemy'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert (found.stdout.strip(), found.stderr) == ("", "")


def test_public_names_are_pinned_and_exist() -> None:
    for package in ("trainers", "service"):
        module = importlib.import_module(package)
        for name in module.__all__:
            assert getattr(module, name) is not None


def test_environment_is_read_in_one_place() -> None:
    """But for what prepares the environment of Ray's processes, or hands it on; torch takes the folder of what it has
    compiled from nowhere else."""
    prepares = {f"trainers/runtime/{name}.py" for name in ("actors/base", "fork_server")}
    prepares |= {f"trainers/runtime/cluster/{name}.py" for name in ("connection", "head", "own_ray")}
    allowed = {"deploy/settings.py", "trainers/models/passes/compiled.py"} | prepares
    for folder in ("trainers", "service", "api", "deploy"):
        for path in (ROOT / folder).rglob("*.py"):
            reads = any(word in path.read_text() for word in ("os.environ", "getenv("))
            assert not reads or str(path.relative_to(ROOT)) in allowed, path


def test_a_foreign_package_of_our_name_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers" / "__init__.py").write_text("")
    program = "import deploy.main"
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, cwd=tmp_path, env={}
    )
    assert done.returncode == 2
    assert f"the package `trainers` in {tmp_path / 'trainers'} hides Millrace's own" in done.stderr
