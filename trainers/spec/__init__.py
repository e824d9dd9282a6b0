"""The one description of a run: `TrainSpec` and its sections. Imports no torch.

A section that belongs to one folder lies there, beside what it describes (`data`, `models`, `optim`, `algorithms`), so
that nothing below this folder needs to know a whole spec. All of them are named here.
"""

from trainers.data.config import DataSpec
from trainers.models.config import ModelSpec
from trainers.models.names import LossName
from trainers.optim.clip import ClipSpec
from trainers.optim.ema import EmaSpec
from trainers.optim.optimizers import (
    AdagradSpec,
    AdamSpec,
    AdamWSpec,
    AnyOptimizer,
    LambSpec,
    LarsSpec,
    LionSpec,
    MomentumSpec,
    MuonSpec,
    NesterovSpec,
    RmspropSpec,
    SgdSpec,
    TorchSpec,
)
from trainers.optim.optimizers.config import Exempt
from trainers.optim.scaling import ScalingSpec
from trainers.optim.schedules import (
    AnySchedule,
    ConstantSchedule,
    CosineSchedule,
    InverseSqrtSchedule,
    KrizhevskySchedule,
    LinearSchedule,
    OneCycleSchedule,
    PolynomialSchedule,
    RestartsSchedule,
    StepSchedule,
    WarmupSpec,
    WsdSchedule,
)
from trainers.section import Section
from trainers.spec.batch import BatchSpec
from trainers.spec.callbacks import CallbackSpec
from trainers.spec.checkpoint import CheckpointSpec
from trainers.spec.elastic import ElasticSpec
from trainers.spec.evaluate import EvaluateSpec
from trainers.spec.parameter_server import ParameterServerSpec
from trainers.spec.paths import PATH_FIELDS, absolute
from trainers.spec.spec_errors import field_errors
from trainers.spec.train import (
    Device,
    TrainSpec,
    TransportName,
)
from trainers.spec.workers import WorkersSpec

__all__ = [
    "PATH_FIELDS",
    "AdagradSpec",
    "AdamSpec",
    "AdamWSpec",
    "AnyOptimizer",
    "AnySchedule",
    "BatchSpec",
    "CallbackSpec",
    "CheckpointSpec",
    "ClipSpec",
    "ConstantSchedule",
    "CosineSchedule",
    "DataSpec",
    "Device",
    "ElasticSpec",
    "EmaSpec",
    "EvaluateSpec",
    "Exempt",
    "InverseSqrtSchedule",
    "KrizhevskySchedule",
    "LambSpec",
    "LarsSpec",
    "LinearSchedule",
    "LionSpec",
    "LossName",
    "ModelSpec",
    "MomentumSpec",
    "MuonSpec",
    "NesterovSpec",
    "OneCycleSchedule",
    "ParameterServerSpec",
    "PolynomialSchedule",
    "RestartsSchedule",
    "RmspropSpec",
    "ScalingSpec",
    "Section",
    "SgdSpec",
    "StepSchedule",
    "TorchSpec",
    "TrainSpec",
    "TransportName",
    "WarmupSpec",
    "WorkersSpec",
    "WsdSchedule",
    "absolute",
    "field_errors",
]
