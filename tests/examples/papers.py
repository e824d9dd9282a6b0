"""The specs of `examples/papers`, each beside its small twin."""

from dataclasses import dataclass
from pathlib import Path

from service import JobSpec, read_spec_file

FOLDER = Path(__file__).parents[2] / "examples" / "papers"


@dataclass(frozen=True)
class Pair:
    """An experiment, and its twin on MNIST or Fashion-MNIST."""

    path: Path
    twin_path: Path

    @property
    def name(self) -> str:
        """Folder and file."""
        return f"{self.path.parent.name}/{self.path.stem}"

    @property
    def paper(self) -> int:
        """Its number."""
        return int(self.path.parent.name[0])

    @property
    def spec(self) -> JobSpec:
        """The paper's."""
        return read_spec_file(self.path)

    @property
    def twin(self) -> JobSpec:
        """The small one."""
        return read_spec_file(self.twin_path)


PAIRS = [Pair(path, path.parent / "small" / path.name) for path in sorted(FOLDER.glob("*/*.yaml"))]


def of_paper(number: int) -> list[Pair]:
    """The experiments of one paper."""
    return [pair for pair in PAIRS if pair.paper == number]
