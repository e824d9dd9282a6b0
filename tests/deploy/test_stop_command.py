"""What `millrace serve` says ends the Ray that it has started."""

from pathlib import Path

from deploy.main import stop_command
from deploy.settings import Settings


def test_it_names_the_folder_where_that_is_not_the_usual_one() -> None:
    settings = Settings(state_dir=Path("/srv/millrace"))
    assert stop_command(settings, Path("/srv/millrace")) == "millrace serve --stop-cluster"
    elsewhere = stop_command(settings, Path("/tmp/of mine"))
    assert elsewhere == "millrace serve --stop-cluster --state-dir '/tmp/of mine'"
