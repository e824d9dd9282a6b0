"""All parts of the recipe that stand in this folder."""

from trainers.spec.quantity import Quantity
from trainers.spec.told.connectivity import connectivity
from trainers.spec.told.division import division
from trainers.spec.told.judgement import judgement
from trainers.spec.told.variation import variation
from trainers.spec.train import TrainSpec


def parts(spec: TrainSpec) -> dict[str, Quantity]:
    """Their numbers by name, in the order of the recipe."""
    return connectivity(spec) | division(spec) | variation(spec.data, spec.task) | judgement(spec)
