"""Which report a sweep has: of batches and rates where it varies the batch, otherwise of settings and axes."""

from collections.abc import Callable, Iterator
from typing import Annotated

from pydantic import Field

from service.scaling.evidence import Evidence
from service.scaling.markdown import markdown
from service.scaling.report import ScalingReport, scaling_report
from service.sweeps.trial_store import TrialStore
from service.sweeps.views import evidence
from service.tuning.markdown import tuning_markdown
from service.tuning.report import TuningReport, tuning_report

AnyReport = Annotated[ScalingReport | TuningReport, Field(discriminator="kind")]


def report_of(store: TrialStore, told: Callable[[str], None] = lambda _: None) -> tuple[AnyReport, Evidence]:
    """The report of a sweep, and what it was made of. told: Called with the id of each trial that has been read."""
    found = evidence(store, told)
    return (scaling_report(found) if store.spec.varies_batch else tuning_report(found)), found


def report_text(report: AnyReport) -> str:
    """As Markdown."""
    return markdown(report) if isinstance(report, ScalingReport) else tuning_markdown(report)


def report_figures(report: AnyReport, found: Evidence) -> Iterator[tuple[str, bytes]]:
    """Names and files. found: What the report was made of."""
    if isinstance(report, ScalingReport):
        from service.scaling.figures import figures  # matplotlib

        yield from figures(report, found)
    else:
        from service.tuning.figures import tuning_figures

        yield from tuning_figures(report)


def report_answer(report: AnyReport) -> list[str]:
    """What it says, in sentences."""
    if isinstance(report, TuningReport):
        return report.answer
    return [sentence for variant in report.variants for sentence in variant.answer]
