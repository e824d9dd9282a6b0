"""What the service refuses: typed, each with a sentence that says what to change.

ServiceError
├── SpecInvalid          fields of a spec are wrong; carries a pointer and a sentence for each
├── SpecUnreadable       another version of Millrace stored a spec that this one cannot read
├── NeverFits            the cluster as it is, or what its user may hold, could never start the job
├── KeyReused            an idempotency key came again with another body
├── JobNotFound          no job has this id
├── CheckpointNotFound   the job has no such checkpoint, or the checkpoint no such file
├── TraceNotFound        the job has no such trace
├── SeriesNotFound       no figure has this name
├── SweepNotFound        no sweep has this id
├── ProjectNotFound      no project has this name
├── ProjectExists        a project has this name already
├── ProjectKept          a project that cannot be deleted yet
│   └── ProjectStays     the default one, which is never deleted
├── StateConflict        the job's state does not allow it
│   └── LimitReached     a running job may not grow while its project or user holds so much
├── TooManyWaiting       as many of the user's jobs wait as may; carries when to ask again
├── TooManyInFlight      as much of what the user asked for is being done as may
├── SignInRefused        who comes from the sign-in provider may not come in; carries which of a few reasons it is
├── ProviderUnreachable  the sign-in provider does not answer, or not as one
├── VersionNotFound      no model of this name and version is registered
├── NotExportable        a model cannot be written in the format
├── ExportBroken         the process that writes a model in a format has failed
├── DrawingFailed        the figures of a report cannot be drawn
├── FigureNotFound       the report has no such figure
├── StudyNotFound        a sweep varies something else than its workers
├── TokenRefused         a token that cannot be made or is not there
├── WebhookNotFound      no webhook has this id
├── WebhookRefused       a webhook leads where none may
├── StorageFull          nothing can be written
├── StorageRefused       a URL that no copies of runs can be kept at
├── StorageUnreachable   the place where copies of runs are does not answer
├── CopyDamaged          the copy of a run is not what its manifest says
└── DatabaseRefused      the database cannot be used
    ├── DatabaseDamaged  it is not whole
    ├── DatabaseNewer    a later Millrace wrote it
    ├── DatabaseRemote   SQLite would lie on a network file system
    └── DatabaseBusy     another service works on it
"""

from trainers import FieldError


class ServiceError(Exception):
    """Root of all that the service refuses. Its first argument is a whole sentence for people."""


class SpecInvalid(ServiceError):
    """A spec that cannot be read."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(error.in_words for error in errors))
        self.errors = errors

    def __reduce__(self) -> tuple[type["SpecInvalid"], tuple[list[FieldError]]]:
        return type(self), (self.errors,)


class SpecUnreadable(ServiceError):
    """Another version of Millrace stored the spec, with fields or values that this one does not know."""


class NeverFits(ServiceError):
    """The job asks for more than the whole cluster has, or than its user may hold."""


class KeyReused(ServiceError):
    """The same idempotency key stood for another job before."""


class JobNotFound(ServiceError):
    """There is no such job."""


class CheckpointNotFound(ServiceError):
    """There is no such checkpoint, or no such file in it."""


class ModelNotFound(ServiceError):
    """The job has no such model, or not yet."""


class VersionNotFound(ServiceError):
    """No model of this name and version is registered."""


class NotExportable(ServiceError):
    """A model that cannot be written in the format that was asked for."""


class ExportBroken(ServiceError):
    """The process that writes a model in another format did not end well."""


class TraceNotFound(ServiceError):
    """There is no such trace."""


class SeriesNotFound(ServiceError):
    """No figure has this name."""


class SweepNotFound(ServiceError):
    """There is no such sweep."""


class ProjectNotFound(ServiceError):
    """There is no such project."""


class ProjectExists(ServiceError):
    """There is a project of this name already."""


class ProjectKept(ServiceError):
    """Some of the project's jobs have not ended."""


class ProjectStays(ProjectKept):
    """The project is the default one."""


class StateConflict(ServiceError):
    """What was asked for is not possible in the job's state."""


class LimitReached(StateConflict):
    """A running job may not have so many workers beside what its project or its user holds."""


class TokenRefused(ServiceError):
    """There is no such token, or none can be made for that name."""


class SignInRefused(ServiceError):
    """Who comes from the sign-in provider, or with a token of it, may not come in."""

    def __init__(self, why: str, message: str, user: str = "") -> None:
        """why: For the page: `denied`, `expired`, `token`, `name`, `role` or `taken`. user: If it is known."""
        super().__init__(message)
        self.why = why
        self.user = user


class ProviderUnreachable(ServiceError):
    """The sign-in provider does not answer, or not as one."""


class WebhookNotFound(ServiceError):
    """There is no such webhook."""


class WebhookRefused(ServiceError):
    """No webhook may lead to that address."""


class TooManyWaiting(ServiceError):
    """As many of the user's jobs wait as may."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class TooManyInFlight(ServiceError):
    """As much of what the user has asked for is being done as may."""


class DrawingFailed(ServiceError):
    """The process that draws a report's figures died, hung, or could not write them."""


class FigureNotFound(ServiceError):
    """The report has no such figure."""


class StudyNotFound(ServiceError):
    """The sweep varies something else than the number of workers."""


class StorageFull(ServiceError):
    """The disk is full; nothing has changed."""


class StorageRefused(ServiceError):
    """No copies of runs can be kept at this URL."""


class StorageUnreachable(ServiceError):
    """The place where copies of runs are kept does not answer."""


class CopyDamaged(ServiceError):
    """The copy of a run is not what its manifest says."""


class DatabaseRefused(ServiceError):
    """The database cannot be used."""


class DatabaseDamaged(DatabaseRefused):
    """The file of the database is not as SQLite wrote it."""


class DatabaseRemote(DatabaseRefused):
    """SQLite's file would lie on a network file system, where it cannot work."""


class DatabaseNewer(DatabaseRefused):
    """A later Millrace wrote the database."""


class DatabaseBusy(DatabaseRefused):
    """Another service works on the database."""
