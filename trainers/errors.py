"""The errors of a run: typed, picklable, each with the remedy in its sentence.

MillraceError
├── SpecRejected          the spec is well formed but cannot be run (found by the preflight)
│   ├── DataNotFound      the dataset is not where the spec says
│   └── UserCodeFailed    a model or dataset function of the user's raised
├── RunFailed             the run started and cannot go on
│   ├── WorkerDied        processes of the run died, and it could not go on without them
│   ├── GoesBack          at best, the run goes back to its last checkpoint
│   │   ├── ShardLost     a shard died and its state is lost
│   │   └── DataLost      blocks of a Ray Dataset are lost
│   ├── DataChanged       a Ray Dataset that was executed anew has other rows
│   ├── DiskFull          there is no room for what was to be written
│   ├── LossNotFinite     the loss became NaN or infinite
│   ├── TooManySkipped    more examples could not be read than may be skipped
│   └── Diverged          the loss stays at chance, or above its start
├── PeerLost              another process of the same generation is gone
├── StoreClosed           the parameter store was shut down while a call waited for it
├── Superseded            another process serves in this shard's place
├── ExportFailed          a finished model cannot be written in a format
├── TraceRefused          no trace can be recorded as it was asked for, or not now
├── Stopped               the run was told to stop; not a failure
└── Fenced                another coordinator owns this run directory
"""

from pydantic import BaseModel


class FieldError(BaseModel):
    """One error in a spec."""

    pointer: str
    """JSON pointer (RFC 6901) of the field."""

    message: str
    """What to change."""

    @property
    def in_words(self) -> str:
        """Both in one line; of the whole spec the message alone."""
        return f"{self.pointer}: {self.message}" if self.pointer else self.message


class MillraceError(Exception):
    """Base class of every error that Millrace raises at run time. Its first argument is a complete sentence."""

    @property
    def reason(self) -> str:
        """The CamelCase word that stands beside a job's state."""
        return type(self).__name__


class SpecRejected(MillraceError):
    """The spec is well formed, but the model, the data or the cluster do not allow it."""


class DataNotFound(SpecRejected):
    """The dataset is not where the spec says it is."""


class UserCodeFailed(SpecRejected):
    """A `module:function` of the user's raised, or returned something of the wrong kind."""


class RunFailed(MillraceError):
    """The run started and cannot go on."""


class WorkerDied(RunFailed):
    """Processes of the run died, and it could not go on without them."""


class GoesBack(RunFailed):
    """Something is lost without which the run can, at best, go back to its last checkpoint."""


class ShardLost(GoesBack):
    """A shard died and its state is lost."""


class DataLost(GoesBack):
    """Blocks of a Ray Dataset are lost, which is executed anew."""


class DataChanged(RunFailed):
    """A Ray Dataset that was executed anew gives other examples than before."""


class DiskFull(RunFailed):
    """There is no room on a disk for what was to be written."""


class LossNotFinite(RunFailed):
    """The loss became NaN or infinite."""


class TooManySkipped(RunFailed):
    """More examples could not be read than the spec lets be skipped."""


class Diverged(RunFailed):
    """The loss stays where guessing would have it, or above its start, and the spec wants a run to fail then."""


class PeerLost(MillraceError):
    """A process of the same generation closed its connection or did not answer in time."""


class StoreClosed(MillraceError):
    """The parameter store was shut down while a call waited for it."""


class Superseded(MillraceError):
    """Another process serves in this shard's place; nothing that this one does has any effect."""


class ExportFailed(MillraceError):
    """A finished model cannot be written in a format, or is not the same afterwards."""


class TraceRefused(MillraceError):
    """No trace can be recorded as it was asked for, or not now."""


class Stopped(MillraceError):
    """The run was told to stop. Not a failure."""


class Fenced(MillraceError):
    """Another coordinator owns this run directory."""


class ClusterUnavailable(MillraceError):
    """Ray did not start, or there is none at the address."""
