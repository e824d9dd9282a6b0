"""The only reader of the environment, where every variable begins with MILLRACE_, and of the config file."""

import os
from pathlib import Path
from typing import Literal

from pydantic import Field, IPvAnyNetwork, SecretStr
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from service import NodeGroup


def config_file() -> Path:
    """Where settings are kept as TOML, one `name = value` a line, with the names of the variables in small letters."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(os.environ.get("MILLRACE_CONFIG") or f"{folder}/millrace/config.toml").expanduser()


class Settings(BaseSettings):
    """Defaults of the command line, which its options override. The environment wins over the config file."""

    model_config = SettingsConfigDict(env_prefix="MILLRACE_", frozen=True)

    host: str = "127.0.0.1"
    """Where `millrace serve` listens; on any but a loopback address it demands tokens."""

    port: int = Field(default=8466, ge=0, le=65535)
    """Its port."""

    server: str = ""
    """The service that `submit`, `watch` and the others ask; left out: the one on `host` and `port`."""

    state_dir: Path = Path("~/.local/state/millrace")
    """What `millrace serve` keeps: the list of jobs, their runs, and which Ray it started."""

    log_format: Literal["text", "json"] = "text"
    """How `millrace serve` and the runs that it starts write their logs: for people, or a JSON object a line."""

    aim_experiment: str = "millrace"
    """The experiment that has the runs of `millrace serve`, where there is an Aim."""

    aim_repo: str = ""
    """The Aim in which jobs are mirrored, as Aim names it: a folder, or `aim://host:53800` of an Aim server."""

    mlflow_experiment: str = "millrace"
    """The experiment that has the runs of `millrace serve`, where there is an MLflow."""

    mlflow_uri: str = ""
    """The MLflow in which jobs are mirrored, as MLflow names it: `http://host:5000`, `sqlite:////path/mlflow.db`."""

    wandb_project: str = ""
    """The project of Weights & Biases in which jobs are mirrored; left out: none. wandb finds its key and its server by
    its own variables."""

    wandb_mode: Literal["online", "offline"] = "online"
    """`offline` writes them into the runs' folders, for `wandb sync`."""

    guide_dir: Path | None = None
    """The built guide that `millrace serve` shows at /guide; left out: what `make docs` has built."""

    runs_dir: Path = Path("runs")
    """Where `millrace run` leaves what it trained."""

    token: SecretStr = SecretStr("")
    """Shown to that service, and to no other."""

    code_role: Literal["viewer", "user", "admin"] = "admin"
    """The least role whose jobs may run code of their own."""

    webhook_allow: list[IPvAnyNetwork] = []
    """Networks that are not public and that webhooks may lead to all the same, such as `["10.1.0.0/16"]`."""

    data_root: Path = Path("data")
    """Where `millrace doctor` looks for datasets."""

    database: str = ""
    """A PostgreSQL's URL, postgresql://USER@HOST/NAME, or sqlite:////FILE; left out: an SQLite file in `state_dir`."""

    storage: str = ""
    """Where `millrace serve` keeps copies of runs, a URL of fsspec: `file:///backup`, `s3://bucket/folder`; left out:
    nowhere."""

    max_running_jobs: int | None = Field(default=None, ge=1)
    """Jobs that one user may run at once; left out: any number."""

    max_cpus: float | None = Field(default=None, gt=0)
    """CPUs that one user's jobs may hold at once."""

    max_gpus: float | None = Field(default=None, ge=0)
    """GPUs likewise."""

    grows_to: list[NodeGroup] = []
    """The largest that an autoscaler makes the cluster at `--address`, as groups of nodes, such as
    `[{"nodes": 8, "cpus": 4}, {"nodes": 4, "cpus": 8, "gpus": 1}]`; left out: the cluster stays as large as it is."""

    max_waiting_jobs: int | None = Field(default=None, ge=1)
    """Jobs of one user that may wait at once; further submissions are answered with 429."""

    keep_s: float | None = Field(default=None, gt=0)
    """Seconds after its end at which a job and its files are removed, where its spec does not say; left out: never."""

    audit_entries: int = Field(default=100_000, ge=1)
    """How many changes the audit keeps, and how many refusals."""

    public_url: str = ""
    """Where browsers find `millrace serve`, such as `https://millrace.example.org`. Sign-in needs it."""

    oidc_issuer: str = ""
    """The OpenID Connect provider through which people sign in to `millrace serve`, a URL; left out: there is none."""

    oidc_client_id: str = ""
    """The service's name there."""

    oidc_client_secret: SecretStr = SecretStr("")
    """Its secret there."""

    oidc_client_secret_file: Path | None = None
    """The file that has the secret, instead."""

    oidc_name: str = ""
    """What people call the provider, as in "Sign in with ..."; left out: the host of its URL."""

    oidc_scopes: list[str] = ["openid", "profile", "email"]
    """What is asked of it."""

    oidc_user_claim: str = "preferred_username"
    """The claim that is the user's name, or a path to it with dots."""

    oidc_groups_claim: str = "groups"
    """The claim that lists the user's groups, likewise."""

    oidc_roles: dict[Literal["viewer", "user", "admin"], list[str]] = {}
    """The groups that have a role, such as `{"admin": ["ml-admins"], "user": ["*"]}`; `*` stands for everybody."""

    oidc_projects: dict[str, list[str]] = {}
    """The groups whose people may submit into a project, such as `{"vision": ["vision-team"]}`."""

    oidc_audiences: list[str] = []
    """The audiences whose tokens the REST API takes; left out: the client id."""

    oidc_session_s: float = Field(default=28_800, gt=0, le=30 * 86_400)
    """Seconds that a sign-in lasts; no token of the provider is taken that is older."""

    oidc_ends_session: bool = True
    """Whether "Sign out" on the page signs out of the provider, too, where that has an address for it."""

    oidc_ca_file: Path | None = None
    """Certificates of authorities, PEM, by which the provider's is checked; left out: the well-known ones."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """What was given, then the environment, then the config file."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=config_file())

    @property
    def server_url(self) -> str:
        """The service's address, with its default filled in."""
        return self.server or f"http://{self.host}:{self.port}"


def guide_dir(settings: Settings) -> Path:
    """The folder of the built guide: the one that is set, or that of the checkout, or else that of the package."""
    if settings.guide_dir is not None:
        return settings.guide_dir.expanduser()
    checkout, package = Path(__file__).parents[1] / "site", Path(__file__).parent / "site"
    return checkout if checkout.is_dir() or not package.is_dir() else package
