"""A described cluster, as a file has it: one kind of device, the switches that they hang on, and the links.

The files in this folder are the four papers' machines; `one-weird-trick` names one, a path any other.
"""

from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from trainers.cost.clusters.units import BytesPerS, FlopPerS, NumBytes, Seconds
from trainers.documented import Documented
from trainers.errors import SpecRejected
from trainers.spec import field_errors

SHIPPED = Path(__file__).parent
MOST_BYTES = 100_000
"""Of a file."""


class Described(Documented):
    """Base class of the parts of a cluster's file: frozen, documented, and strict about names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DescribedDevice(Described):
    """What each worker computes on."""

    name: str = Field(min_length=1, max_length=200)
    """As a profile of it says, for instance `NVIDIA K20`."""

    flops: FlopPerS | None = None
    """What it reaches on the model's products, not its peak: `2 TFLOP/s`. null: a profile tells the seconds."""

    memory_bandwidth: BytesPerS | None = None
    """Of its own memory, which bounds an update; null: updates are taken to cost nothing."""

    memory: NumBytes | None = None
    """What it has; null: whether a model fits is not told."""


class DescribedLink(Described):
    """One direction of a link; the other has as much."""

    latency: Seconds = 0.0
    """What a message costs however short it is."""

    bandwidth: BytesPerS
    """`6 GB/s`, `56 Gbit/s`."""

    each: BytesPerS | None = None
    """What one transfer by itself reaches at most; null: all of the bandwidth."""

    core: BytesPerS | None = None
    """What one core moves if it does nothing else, the work at both ends together. Processors that train compute less
    meanwhile; null: moving costs them nothing."""

    shared: bool = True
    """Of a link between switches: whether all devices of a switch share it, as a node's do its network card; else each
    has as much for itself."""


class Switch(Described):
    """Devices that reach each other without leaving it: those of a node, or of one PCIe switch."""

    devices: int = Field(ge=1, le=4096)
    count: int = Field(default=1, ge=1, le=4096)
    """How many switches are like this one."""


class Cluster(Described):
    """Workers fill the switches in the order in which these are written."""

    name: str = Field(min_length=1, max_length=200)
    source: str = ""
    """Where the figures come from."""

    device: DescribedDevice

    links: dict[str, DescribedLink] = Field(min_length=1, max_length=20)
    """By a name that `inside` and `between` take up."""

    switches: tuple[Switch, ...] = Field(min_length=1, max_length=1000)

    inside: Annotated[str, Field(validate_default=True)] = ""
    """The link among the devices of a switch."""

    between: Annotated[str, Field(validate_default=True)] = ""
    """The link between switches; needed where there are several."""

    messages: Annotated[str, Field(validate_default=True)] = ""
    """The link among the devices of a switch that exchange messages although they share memory, as with shards where
    others are on other switches; empty: as `inside`."""

    shard_bandwidth: BytesPerS | None = None
    """What the process of a shard takes in and gives out in a second; null: as much as its link."""

    @field_validator("inside", "between", "messages")
    @classmethod
    def _is_there(cls, name: str, info: ValidationInfo) -> str:
        links, switches = info.data.get("links"), info.data.get("switches")
        if links is None or switches is None:
            return name
        needed = {
            "inside": any(each.devices > 1 for each in switches),
            "between": sum(each.count for each in switches) > 1,
            "messages": False,
        }
        if not name and not needed[str(info.field_name)]:
            return name
        if name not in links:
            what = f"there is no link {name!r}" if name else "a link is missing"
            raise ValueError(f"{what}; name one of links: {', '.join(links)}, or describe another there")
        return name

    @property
    def sizes(self) -> tuple[int, ...]:
        """Devices of each switch, in order."""
        return tuple(switch.devices for switch in self.switches for _ in range(switch.count))

    @property
    def num_devices(self) -> int:
        """All of them."""
        return sum(self.sizes)


def shipped_clusters() -> tuple[str, ...]:
    """The names of those that come with Millrace."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.yaml")))


def read_cluster(name_or_file: str) -> Cluster:
    """The cluster of that name, or in that file.

    Raises:
        SpecRejected: There is none, or it is not described well; with the field.
    """
    shipped = shipped_clusters()
    path = SHIPPED / f"{name_or_file}.yaml" if name_or_file in shipped else Path(name_or_file)
    try:
        text = path.read_text() if path.stat().st_size <= MOST_BYTES else ""
    except (OSError, UnicodeDecodeError):
        raise SpecRejected(
            f"cluster: there is no file {name_or_file}, nor a cluster of that name; there are {', '.join(shipped)}"
        ) from None
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecRejected(f"{name_or_file}: it is no YAML: {str(error).splitlines()[0]}") from None
    return cluster_of(found, name_or_file)


def cluster_of(described: Any, where: str) -> Cluster:
    """The cluster that plain values describe. where: what an error calls them.

    Raises:
        SpecRejected: With the first field that is wrong.
    """
    try:
        return Cluster.model_validate(described)
    except ValidationError as error:
        raise SpecRejected(f"{where}: {field_errors(error, Cluster)[0].in_words}") from None
