"""`python -m benchmarks.papers.reproduced FOLDER`: are the guide's figures of the claims found again?

FOLDER is the `--claims-dir` of later whole runs of `millrace claims`, which train what the guide's did. Of each
variant, the mean over the seeds that both have is held against that in docs/claims: a seed draws the first weights and
the order of the examples, so others would differ more. It is found again where the interval of their difference
(Welch's, 95 % on each side) holds 0: of ten figures that are the same but for chance, one is not found again. Where all
seeds have the same values to the last bit, it says so. Exit status 1 where more are not found again than chance
explains, with 95 % confidence.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from scipy.stats import binom

from benchmarks.papers.claims import PAGES
from service import ClaimReport, TrialStore, all_claims, claim_report, evidence, evidence_before
from service.claims.verdict import VariantResult
from service.scaling.statistics import CONFIDENCE, Seeds, difference


class Found(NamedTuple):
    """One figure of one variant, as it is in the guide and as it came out again."""

    claim: str
    variant: str
    figure: str
    guide: dict[int, float]
    """Seed -> value."""
    again: dict[int, float]

    @property
    def common(self) -> tuple[list[float], list[float]]:
        """The values of both, for the seeds that both have."""
        seeds = sorted(self.guide.keys() & self.again.keys())
        return [self.guide[seed] for seed in seeds], [self.again[seed] for seed in seeds]

    @property
    def answer(self) -> str:
        """In a word or two."""
        guide, again = self.common
        if guide == again:
            return "same bits"
        between = difference(Seeds.of(guide), Seeds.of(again))
        if between is None:
            return "too few seeds"
        return "found again" if between[0] <= 0 <= between[1] else "not found again"


def figures(guide: ClaimReport, again: ClaimReport) -> Iterator[Found]:
    """All that both have."""
    pairs = [("", guide.variants, again.variants)]
    if guide.before is not None and again.before is not None:
        pairs.append(("before: ", guide.before.variants, again.before.variants))
    for prefix, ours, theirs in pairs:
        others = {one.name: one for one in theirs}
        for one in ours:
            if one.name in others:
                yield from _of_variant(guide, prefix, one, others[one.name])


def _of_variant(guide: ClaimReport, prefix: str, one: VariantResult, other: VariantResult) -> Iterator[Found]:
    found, again = ({seed: guide.metric.value(cost) for seed, cost in each.costs.items()} for each in (one, other))
    values = [(guide.metric.name, found, again)]
    values += [(of, of_one, other.quantities.get(of, {})) for of, of_one in one.quantities.items()]
    for name, ours, theirs in values:
        if ours.keys() & theirs.keys():
            yield Found(guide.name, prefix + one.name, name, ours, theirs)


def by_chance(count: int) -> int:
    """How many of so many figures are not found again at most, with 95 % confidence, though all are the same."""
    return int(binom.ppf(CONFIDENCE, count, 2 * (1 - CONFIDENCE)))


def main() -> int:
    """Print a line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    table = Table("claim", "variant", "figure", "guide", "again", "seeds", "answer")
    answers = Counter[str]()
    for name, claim in all_claims().items():
        store, page = TrialStore(folder / name), PAGES / f"{name}.json"
        if not (store.exists and store.state.is_terminal and page.exists()):
            continue
        again = claim_report(claim, evidence(store), before=evidence_before(folder / name))
        for one in figures(ClaimReport.model_validate_json(page.read_text()), again):
            means = [f"{Seeds.of(values).mean:.4g}" for values in one.common]
            table.add_row(one.claim, one.variant, one.figure, *means, str(len(one.common[0])), one.answer)
            answers[one.answer] += 1
    Console().print(table)
    found, missed = answers["found again"], answers["not found again"]
    most = by_chance(found + missed)
    print(
        f"{found} found again, {missed} not, of which up to {most} by chance; {answers['same bits']} with the same bits"
    )
    return 1 if missed > most else 0


if __name__ == "__main__":
    sys.exit(main())
