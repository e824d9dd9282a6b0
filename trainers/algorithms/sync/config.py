"""The config of synchronous SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from trainers.algorithms.config import AlgorithmConfig
from trainers.algorithms.traits import Traits

if TYPE_CHECKING:
    from trainers.algorithms.base import Algorithm, Context

DIVIDED = "the fast reduction divides each bucket among workers; use reduction: canonical"

AllReduceName = Literal["auto", "ring", "halving_doubling", "binary_blocks", "three_phase", "library"]


class SyncConfig(AlgorithmConfig):
    """Synchronous SGD. By default the result is bit-identical on any number of workers."""

    source: ClassVar[str] = "papers 1 (4.1), 3 (III.B) and 4 (2, 4), Chen et al. 2016, Jayarajan et al. 2019"

    name: Literal["sync"] = "sync"
    """The name of the algorithm in a spec."""

    form: Literal["all_reduce", "parameter_server"] = "all_reduce"
    """`all_reduce`: workers exchange gradients among themselves; `parameter_server`: through the shards."""

    reduction: Literal["canonical", "fast"] = "canonical"
    """`canonical`: gradients are added in a fixed order, which gives the same bits on any number of workers. `fast`:
    they are added in buckets while the passes go on, in the fastest order: the same numbers to float tolerance, and
    the same bits on all workers of a run. `fast` needs the form `all_reduce`."""

    all_reduce: AllReduceName | None = None
    """Fast: how the workers sum a bucket (paper 4, section 4.1). `halving_doubling` needs a power of two of workers;
    `three_phase` sums within each node, between the nodes, and broadcasts within each node; `library` is the
    transport's own all-reduce; `auto`, the default, takes the fastest by transport, size and number of workers."""

    bucket_bytes: int | None = Field(default=None, ge=1, le=2**32)
    """Fast: size of a bucket; the gradients of complete parameters are sent once they have this size. null: 1 MiB."""

    in_flight: int | None = Field(default=None, ge=1, le=64)
    """Fast: number c of buckets that are summed at the same time; null: 2."""

    @field_validator("reduction")
    @classmethod
    def _shards_are_canonical(cls, reduction: str, info: ValidationInfo) -> str:
        if reduction == "fast" and info.data.get("form") == "parameter_server":
            raise ValueError("the shards add in the canonical order; use canonical, or set form to all_reduce")
        return reduction

    @field_validator("all_reduce", "bucket_bytes", "in_flight")
    @classmethod
    def _is_fast(cls, value: Any, info: ValidationInfo) -> Any:
        if value is not None and info.data.get("reduction") == "canonical":
            raise ValueError(
                f"the canonical reduction has no {info.field_name}; leave it out, or set reduction to fast"
            )
        return value

    backup: int = Field(default=0, ge=0, le=2047)
    """b: of `workers.count` = K + b workers the K that finish first make a step, each with one minibatch, and the
    gradients of the others are dropped. b must be smaller than K. Needs the form `parameter_server`."""

    @field_validator("backup")
    @classmethod
    def _has_shards(cls, backup: int, info: ValidationInfo) -> int:
        if backup and info.data.get("form") == "all_reduce":
            raise ValueError("an all-reduce waits for everybody; use backup: 0, or form: parameter_server")
        return backup

    noise_scale: bool = False
    """Whether the gradient noise scale is measured, from the norms of the virtual workers' gradients and of their sum
    (McCandlish et al. 2018, appendix A.1): about the batch beyond which more examples in a step bring little. Needs the
    form `all_reduce`, the reduction `canonical` and two virtual workers."""

    @field_validator("noise_scale")
    @classmethod
    def _sees_gradients(cls, noise_scale: bool, info: ValidationInfo) -> bool:
        if noise_scale and info.data.get("form") == "parameter_server":
            raise ValueError(
                "each shard sees a slice of the gradients; use form: all_reduce, which gives the same bits"
            )
        if noise_scale and info.data.get("reduction") == "fast":
            raise ValueError("the fast reduction adds up minibatches as they come; use reduction: canonical")
        return noise_scale

    @property
    def traits(self) -> Traits:
        return Traits(
            is_synchronous=not self.backup,  # with backup workers the fastest decide which minibatches a step trains
            uses_parameter_server=self.form == "parameter_server",
            uses_collectives=self.form == "all_reduce",
            num_backup=self.backup,
            divides_parameters="" if self.reduction == "canonical" else DIVIDED,
            hides_norm=self._hides_norm,
            sends_gradients=self.reduction == "canonical",
            sends_whole=self._sends_whole,
            scales_loss=not self._hides_norm,
        )

    @property
    def _sends_whole(self) -> str:
        if self.form == "parameter_server":
            return "the shards add whole gradients; take form: all_reduce, which without compress gives the same bits"
        return "" if self.reduction == "canonical" else "the fast reduction passes sums on; take reduction: canonical"

    @property
    def _hides_norm(self) -> str:
        if self.form == "parameter_server":
            return (
                "each shard has a slice of the gradient; use form: all_reduce, which gives the same bits, or clip.value"
            )
        if self.reduction == "fast":
            return (
                "the fast reduction updates one bucket while others are summed; use reduction: canonical, or clip.value"
            )
        return ""

    def check_workers(self, num_workers: int) -> None:
        if self.all_reduce == "halving_doubling" and num_workers & (num_workers - 1):
            why = f"{num_workers} workers are no power of two; use binary_blocks, which serves any number, or auto"
            raise self.refused("all_reduce", why)
        if self.backup and 2 * self.backup >= num_workers:
            problem = f"{num_workers} workers of which {self.backup} are backup leave K = {num_workers - self.backup}"
            remedy = f"use at most {(num_workers - 1) // 2}, or {2 * self.backup + 1} workers or more"
            raise self.refused("backup", f"{problem}, and b must be smaller than K; {remedy}")

    def check_virtual(self, num_workers: int, num_virtual: int) -> None:
        if self.noise_scale and num_virtual < 2:
            raise self.refused(
                "noise_scale", "a lone virtual worker has no smaller batch; set workers.virtual to 2 or more"
            )
        if self.backup and num_virtual != num_workers:
            why = f"with backup workers each of the {num_workers} workers computes one minibatch"
            raise self.refused("backup", f"{why}; use workers.virtual: 0, or backup: 0")

    def build(self, context: Context) -> Algorithm:
        # Imported here, because a spec is read in processes without torch and the step needs it.
        from trainers.algorithms.all_reduce import AllReduce
        from trainers.algorithms.sync.backup import SyncBackup
        from trainers.algorithms.sync.bucketed import SyncBucketed
        from trainers.algorithms.sync.compressed import SyncCompressed
        from trainers.algorithms.sync.parameter_server import SyncParameterServer

        if context.compress is not None:
            return SyncCompressed(context)
        if self.backup:
            return SyncBackup(context)
        if self.form == "parameter_server":
            return SyncParameterServer(context)
        if self.reduction == "fast":
            return SyncBucketed(self, context)
        return AllReduce(context, self.noise_scale)
