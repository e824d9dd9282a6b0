"""The errors of a run: typed, picklable, each with the remedy in its sentence.

MillraceError
├── SpecRejected          the spec is well formed but cannot be run (found by the preflight)
│   ├── DataNotFound      the dataset is not where the spec says
│   └── UserCodeFailed    a model or dataset function of the user's raised
├── RunFailed             the run started and cannot go on
│   ├── WorkerDied        processes of the run died, and it could not go on without them
│   ├── ShardLost         a shard died with all that it had
│   └── LossNotFinite     the loss became NaN or infinite
├── PeerLost              another process of the same generation is gone
├── StoreClosed           the parameter store was shut down while a call waited for it
├── Superseded            another process serves in this shard's place
├── ExportFailed          a finished model cannot be written in a format
├── Stopped               the run was told to stop; not a failure
└── Fenced                another coordinator owns this run directory
"""


class MillraceError(Exception):
    """Root of every error that Millrace raises at run time. Its first argument is a whole sentence for people."""

    @property
    def reason(self) -> str:
        """The CamelCase word that stands beside a job's state."""
        return type(self).__name__


class SpecRejected(MillraceError):
    """The spec reads well but the model, the data or the cluster do not allow it."""


class DataNotFound(SpecRejected):
    """The dataset is not where the spec says it is."""


class UserCodeFailed(SpecRejected):
    """A `module:function` of the user's raised, or returned something else than was asked for."""


class RunFailed(MillraceError):
    """The run started and cannot go on."""


class WorkerDied(RunFailed):
    """Processes of the run died, and it could not go on without them."""


class ShardLost(RunFailed):
    """A shard died with all that it had: at best, the run goes back to its last checkpoint."""


class LossNotFinite(RunFailed):
    """The loss became NaN or infinite."""


class PeerLost(MillraceError):
    """A process of the same generation closed its connection or did not answer in time."""


class StoreClosed(MillraceError):
    """The parameter store was shut down while a call waited for it."""


class Superseded(MillraceError):
    """Another process serves in this shard's place: nothing that this one does counts any more."""


class ExportFailed(MillraceError):
    """A finished model cannot be written in a format, or is not the same afterwards."""


class Stopped(MillraceError):
    """The run was told to stop. Not a failure."""


class Fenced(MillraceError):
    """Another coordinator owns this run directory."""


class ClusterUnavailable(MillraceError):
    """Ray did not start, or there is none at the address."""
