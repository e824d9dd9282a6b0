"""The section `ema` of a spec: an average of the parameters over the updates. Imports no torch."""

from pydantic import Field

from trainers.section import Section

EMA = "ema"
"""The name of the average among the states that lie beside the parameters."""


RAW = "raw.safetensors"
"""In a run's folder: the finished model with the parameters as they are, where `model.safetensors` has the average."""


class EmaSpec(Section):
    """An exponential moving average a <- decay a + (1 - decay) w, made after each update (Polyak and Juditsky 1992). It
    is what is evaluated and exported."""

    decay: float = Field(default=0.999, ge=0, lt=1)
    """Share of the average that stays at an update: it reaches back over about 1 / (1 - decay) of them."""
