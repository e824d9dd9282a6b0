"""What the service refuses: typed, each with a sentence that says what to change.

ServiceError
├── SpecInvalid       fields of a spec are wrong; carries a pointer and a sentence for each
├── NeverFits         the cluster as it is could never start the job
├── KeyReused         an idempotency key came again with another body
├── JobNotFound       no job has this id
└── StateConflict     the job's state does not allow it
"""

from trainers import FieldError


class ServiceError(Exception):
    """Root of all that the service refuses. Its first argument is a whole sentence for people."""


class SpecInvalid(ServiceError):
    """A spec that cannot be read."""

    def __init__(self, errors: list[FieldError]) -> None:
        super().__init__("; ".join(f"{error.pointer or '/'}: {error.message}" for error in errors))
        self.errors = errors


class NeverFits(ServiceError):
    """The job asks for more than the whole cluster has."""


class KeyReused(ServiceError):
    """The same idempotency key stood for another job before."""


class JobNotFound(ServiceError):
    """There is no such job."""


class StateConflict(ServiceError):
    """What was asked for is not possible in the job's state."""
