"""What the console's entry point begins before anything else."""

import pytest

from deploy.command import starts_a_ray


@pytest.mark.parametrize("line", ["run job.yaml", "run --json job.yaml", "run"])
def test_a_run_of_its_own_starts_a_ray(line: str) -> None:
    assert starts_a_ray(line.split())


@pytest.mark.parametrize(
    "line", ["", "--help", "run --help", "run a.yaml --address=auto", "run a --address h:1", "list"]
)
def test_what_starts_none(line: str) -> None:
    assert not starts_a_ray(line.split())
