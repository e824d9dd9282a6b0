"""What of a user's folder travels to the workers."""

import zipfile
from pathlib import Path

import pytest
import ray
from ray._private.runtime_env import packaging

from trainers import ClusterInfo, SpecRejected, TrainSpec, train
from trainers.runtime import api, code_package
from trainers.runtime.code_package import package_code


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a module, and much that is no code."""
    found = tmp_path / "mine"
    for name in ("net.py", "lib/loss.py", "runs/1/events.jsonl", ".git/objects", "env/pyvenv.cfg", "env/lib/a.py",
                 "lib/.venv/pyvenv.cfg", "lib/.venv/lib/a.py",
                 "data/large.bin", "__pycache__/net.pyc", "notes.txt"):  # fmt: skip
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(name)
    (found / ".gitignore").write_text("data/\n")
    (found / ".rayignore").write_text("notes.txt\n")
    return found


def test_code_travels_from_inside_its_folder_and_nothing_else(
    folder: Path, cluster: ClusterInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray writes the package into the current folder by default, where it would contain itself."""
    before, names, zip_files = files(folder), set[str](), packaging._zip_files

    def watched(path: str, excludes: list[str], output_path: str, **kwargs: object) -> None:
        zip_files(path, excludes, output_path, **kwargs)
        names.update(name for name in zipfile.ZipFile(output_path).namelist() if not name.endswith("/"))
        assert files(folder) == before

    monkeypatch.setattr(packaging, "_zip_files", watched)
    monkeypatch.chdir(folder)
    assert package_code(Path())["working_dir"].startswith("gcs://")
    assert names == {"net.py", "lib/loss.py", ".gitignore", ".rayignore"}
    assert files(folder) == before


def test_what_cannot_be_sent_is_told_before_there_is_a_ray(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "embedded", lambda **_: pytest.fail("Ray was started"))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(SpecRejected, match=r"code: there is no folder .*none"):
        train(TrainSpec(code=str(tmp_path / "none")), tmp_path / "run")
    (folder / "service.py").touch()
    with pytest.raises(SpecRejected, match=r"would hide Millrace's own package `service`; rename it"):
        train(TrainSpec(code=str(folder)), tmp_path / "run")


def test_a_large_folder_is_refused_and_told_what_is_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_package, "MOST_BYTES", 3 * 2**20)
    (folder / "weights.bin").write_bytes(bytes(5 * 2**20))
    with pytest.raises(SpecRejected, match=r"code: .* holds 5 MB \(weights.bin 5 MB, .*\.rayignore"):
        package_code(folder)
    (folder / ".rayignore").write_text("*.bin\n")
    code_package._check_size(folder, list(code_package.LEFT_OUT))


@pytest.mark.parametrize("target", [".", "..", "../.."])
def test_a_link_by_which_a_folder_contains_itself_is_refused(folder: Path, target: str) -> None:
    (folder / "lib" / "again").symlink_to(target)
    with pytest.raises(SpecRejected, match=r"lib/again is a link to a folder that it lies in; .*\.rayignore"):
        package_code(folder)
    (folder / ".rayignore").write_text("again\n")
    code_package._check_size(folder, list(code_package.LEFT_OUT))


def test_a_link_to_another_folder_travels(folder: Path, tmp_path: Path) -> None:
    (folder / "shared").symlink_to(tmp_path)
    with pytest.raises(SpecRejected, match="shared is a link to a folder that it lies in"):
        package_code(folder)  # it holds the folder itself
    (folder / "shared").unlink()
    (tmp_path / "other").mkdir()
    (folder / "shared").symlink_to(tmp_path / "other")
    code_package._check_size(folder, list(code_package.LEFT_OUT))
