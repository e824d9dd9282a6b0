"""A sweep that a command runs here for a purpose of its own: from where it is, to its end."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from api.cli.actions.sweeps import SweepLines
from api.cli.connection import complain
from api.cli.context import BAD_INPUT, FAILED, OK, CliContext
from api.cli.interrupts import Interrupts
from service import LocalSweep, MillraceError, NeverFits, SpecInvalid, State, SweepSpec, check_fits, trial_needs


@dataclass(frozen=True)
class SweepHere:
    """What is run, where, and how its errors are told."""

    spec: SweepSpec
    folder: Path
    address: str | None
    num_cpus: int | None
    title: Callable[[int], str]
    """Its first line, from the number of its trials."""
    refused: Callable[[SpecInvalid], str]
    """The errors of the spec, or of a folder that holds another sweep."""
    too_large: Callable[[NeverFits], str]

    def run(self, context: CliContext) -> int:
        """Run what has not been run yet. Returns the exit status."""
        lines = SweepLines(sys.stderr)
        try:
            with Interrupts() as interrupts, context.cluster(self.address, trial_needs(self.spec), self.num_cpus):
                growth = context.growth(self.address)
                check_fits(self.spec, context.runs().total_resources(), growth)
                interrupts.install()  # and no run to cancel: a signal pauses the sweep, and the same command goes on
                found = LocalSweep.open(self.spec, self.folder, growth)
                lines.say(f"{self.title(len(found.store.trials()))}, in {self.folder}")
                done = found.run(lines.show)
        except SpecInvalid as error:
            complain(self.refused(error))
            return BAD_INPUT
        except NeverFits as error:
            complain(self.too_large(error))
            return BAD_INPUT
        except KeyboardInterrupt:
            complain("Ended. The same command goes on with it.")
            return FAILED
        except MillraceError as error:
            complain(str(error))
            return FAILED
        return OK if done.state is State.SUCCEEDED else FAILED
