"""How a recipe varies its training examples."""

from trainers.data.config import DataSpec
from trainers.spec.quantity import Quantity
from trainers.tasks.config import TaskSpec


def variation(data: DataSpec, task: TaskSpec) -> dict[str, Quantity]:
    """How training images, and their labels, are varied, as far as they are."""
    found = dict[str, Quantity]()
    if how := data.rand_augment:
        formula = f"{how.ops} of 14 operations an image, of this strength out of 30, drawn by example and epoch"
        found["rand_augment"] = Quantity(value=how.magnitude, formula=formula, source="Cubuk et al. 2020")
    if erasing := data.random_erasing:
        formula = f"share of images that lose a box of {erasing.scale[0]:g} to {erasing.scale[1]:g} of their area"
        found["random_erasing"] = Quantity(value=erasing.probability, formula=formula, source="Zhong et al. 2020")
    either = "; each minibatch draws one of mixup and cutmix" if len(data.mixed_by) > 1 else ""
    drawn = f"l ~ Beta(alpha, alpha) a virtual worker's minibatch; loss l CE(y_i) + (1 - l) CE(y_j){either}"
    if mixup := data.mixup:
        formula = f"alpha: x <- l x_i + (1 - l) x_j, {drawn}"
        found["mixup"] = Quantity(value=mixup.alpha, formula=formula, source="Zhang et al. 2018")
    if cutmix := data.cutmix:
        formula = f"alpha: a share 1 - l of x_i, a box, comes from x_j, {drawn}"
        found["cutmix"] = Quantity(value=cutmix.alpha, formula=formula, source="Yun et al. 2019")
    smoothing = task.kwargs.get("label_smoothing")
    if isinstance(smoothing, float) and smoothing:
        formula = "s, while training: the target is 1 - s + s / classes for the label, s / classes for the others"
        found["label_smoothing"] = Quantity(value=smoothing, formula=formula, source="Szegedy et al. 2016")
    return found
