"""A study as a picture: the rate, measured and predicted, and the efficiency against the workers."""

from service.scaling.drawing import LEGEND, files, panels
from service.speedup.study import Study


def study_picture(study: Study) -> dict[str, bytes]:
    """`png` and `svg`."""
    _, (left, right) = panels(2, 5.5, 4.0)
    measured = [(row.workers, row.examples_per_s) for row in study.rows if row.examples_per_s is not None]
    predicted = [(row.workers, row.predicted_per_s) for row in study.rows if row.predicted_per_s is not None]
    for label, style, points in (("measured", "o-", measured), ("predicted", "s--", predicted)):
        if points:
            left.plot([workers for workers, _ in points], [rate for _, rate in points], style, label=label)
    if known := measured or predicted:
        fewest, rate = known[0]
        left.plot([w for w, _ in known], [rate / fewest * w for w, _ in known], ":", color="grey", label="linear")
    left.set(xlabel="workers", ylabel="examples a second", title=f"{study.name}, {study.algorithm}")
    left.set_ylim(bottom=0)
    left.legend(**LEGEND)
    told = [(row.workers, row.efficiency) for row in study.rows if row.efficiency is not None]
    right.plot([workers for workers, _ in told], [100 * share for _, share in told], "o-")
    right.set(xlabel="workers", ylabel="efficiency, %", title="speed-up a worker")
    right.set_ylim(0, 110)
    figure = left.figure
    assert figure is not None
    return files(figure)  # type: ignore[arg-type]  # not a part of another figure
