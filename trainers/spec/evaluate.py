"""The section `evaluate` of a spec."""

from pydantic import Field, field_validator

from trainers.section import Section


class EvaluateSpec(Section):
    """When the test set is evaluated. Asynchronous workers do not stop for it."""

    every_epochs: int = Field(default=1, ge=0)
    """Epochs between evaluations; 0: only at the end of the run."""

    every_steps: int | None = Field(default=None, ge=1)
    """Steps between further evaluations, counted from the beginning of the training; none: no further ones. Of
    asynchronous algorithms updates, which the workers report once every `report_every_s`."""

    every_s: float | None = Field(default=None, gt=0)
    """Seconds between further evaluations; none: no further ones."""

    batch: int = Field(default=500, ge=1, le=100_000)
    """Examples per forward pass."""

    recompute_statistics: int = Field(default=0, ge=0, le=100_000)
    """Training minibatches over which batch-norm statistics are computed anew before an evaluation (paper 4, figure
    4); 0: the running averages, their mean over virtual workers."""

    classes: tuple[int, ...] | None = Field(default=None, min_length=2)
    """Labels of a part of the classes, which alone is evaluated: examples of other classes are left out, and the logits
    of those classes are masked (paper 4, section 5.3, ImageNet-5k). Of the task `classification`; none: all classes."""

    @field_validator("classes")
    @classmethod
    def _are_labels(cls, classes: tuple[int, ...] | None) -> tuple[int, ...] | None:
        for label in classes or ():
            if label < 0:
                raise ValueError(f"{label} is no class; they are numbered from 0 on")
            if classes is not None and classes.count(label) > 1:
                raise ValueError(f"{label} is named twice; name each class once")
        return classes

    def is_due(self, epoch: int, step: int, steps: int) -> bool:
        """Whether the version after `epoch` epochs of `steps` steps each, and `step` steps of the next one, is to be
        evaluated."""
        at_end = step == 0 and bool(self.every_epochs) and epoch % self.every_epochs == 0
        return at_end or (self.every_steps is not None and (epoch * steps + step) % self.every_steps == 0)
