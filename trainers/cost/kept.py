"""Profiles that are kept: how long a minibatch takes on this machine, timed once and used again. Imports no torch."""

import hashlib
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainers.algorithms.hybrid.config import HybridConfig
from trainers.algorithms.spatial.config import SpatialConfig
from trainers.cost.plan import StepProfile
from trainers.cost.profiled import processor, profiled_fields
from trainers.cost.workload import Workload, num_states_of
from trainers.prediction import profiles_folder
from trainers.spec import TrainSpec

GPUS = Path("/proc/driver/nvidia/gpus")


class KeptProfile(StepProfile):
    """A profile together with what was counted of the model, which needs not be counted again."""

    work: Workload


def keep_profile(spec: TrainSpec, profile: StepProfile) -> KeptProfile:
    """Count the spec's model, and write both where `kept_profile` finds them; what lay there is replaced. Needs torch.

    Raises:
        SpecRejected: As `count_workload`.
    """
    from trainers.cost.counting import count_workload

    kept = KeptProfile(**profile.model_dump(), work=count_workload(spec))
    path = _path(spec)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(kept.model_dump_json(indent=2) + "\n")
    partial.replace(path)
    return kept


def kept_profile(spec: TrainSpec) -> KeptProfile | None:
    """The one that this user keeps of the spec's minibatch on this machine; None where there is none."""
    with suppress(OSError, ValidationError):
        kept = KeptProfile.model_validate_json(_path(spec).read_bytes())
        return kept.model_copy(update={"work": kept.work.model_copy(update={"num_states": num_states_of(spec)})})
    return None


def _path(spec: TrainSpec) -> Path:
    """The file is named after all that decides about what is in it."""
    decides = [profiled_fields(spec), _counted(spec), processor(), _gpus() if spec.workers.gpus else []]
    key = json.dumps(decides, sort_keys=True, default=str)
    return profiles_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.json"


def _counted(spec: TrainSpec) -> dict[str, Any]:
    """What else decides about the layers and variables; only hybrid and spatial count by options of their own."""
    config = spec.algorithm
    groups = [group.model_dump(mode="json") for group in spec.optimizer.groups]
    split: str | None = config.split if isinstance(config, HybridConfig) else None
    if isinstance(config, HybridConfig) and config.connect is not None:
        split = f"{config.split} of {config.blocks} blocks"
    if isinstance(config, HybridConfig) and config.columns is not None:
        split = f"{split} below {config.columns} columns"
    if isinstance(config, SpatialConfig):
        split = f"rows until {config.until}"
    return {"task": spec.task.model_dump(mode="json"), "loss": spec.loss, "code": spec.code, "groups": groups,
            "split": split}  # fmt: skip


def _gpus() -> list[str]:
    """The manufacturer's names of this machine's GPUs."""
    told = (line for one in sorted(GPUS.glob("*/information")) for line in one.read_text().splitlines())
    return [line.partition(":")[2].strip() for line in told if line.startswith("Model:")]
