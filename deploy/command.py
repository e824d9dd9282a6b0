"""The console's entry point: what takes longest to start begins before the command line is imported."""

import sys


def main() -> None:
    """The command `millrace`."""
    if asks_what_there_is(sys.argv[1:]):
        from api import CliContext, build

        build(CliContext.of_no_command())()
    if starts_a_ray(sys.argv[1:]):
        from service import warm_up

        warm_up()
    from deploy.main import main as command

    command()


def asks_what_there_is(arguments: list[str]) -> bool:
    """Whether a command line asks for no command, and so needs no settings: reading them takes as long as the answer.
    Not where it has no word, as a shell that asks how to complete one has none."""
    return arguments in (["--help"], ["-h"], ["--version"])


def starts_a_ray(arguments: list[str]) -> bool:
    """Whether a command line is a run that comes with a Ray of its own, as far as that is told without its parser."""
    return arguments[:1] == ["run"] and not any(one.startswith(("--address", "--help", "-h")) for one in arguments)


if __name__ == "__main__":
    main()
