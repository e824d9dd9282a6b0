"""How much of a model the workers share out. Imports no torch."""

from pydantic import BaseModel, ConfigDict


class Divided(BaseModel):
    """Parameters of the layers of which each worker has a part."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    whole: int
    """All that are trained."""
    most: int
    """Of these, those of the worker that has most."""
    built: int
    """As the model is built, which every worker keeps."""
