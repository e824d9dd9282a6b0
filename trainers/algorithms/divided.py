"""How much of a model the workers share out. Imports no torch."""

from pydantic import ConfigDict

from trainers.documented import Documented


class Divided(Documented):
    """Parameters of the layers of which each worker has a part."""

    model_config = ConfigDict(frozen=True)

    whole: int
    """All that are trained."""
    most: int
    """Of these, those of the worker that has most."""
    built: int
    """As the model is built, which every worker keeps."""
