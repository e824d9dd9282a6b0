"""Stands in for the agent of Ray's dashboard on a node without one.

A raylet must have such a process, waits for the ports that it serves, and ends where it ends. Ray's own imports Ray and
all of the dashboard, more than a second of a core, to tell that it serves none. Run as a script.
"""

import os
import select
import sys

PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port")
NONE = "-1"


def main(arguments: list[str]) -> None:
    """Tell the raylet that there are no ports, and wait for its end."""
    raylet = os.pidfd_open(os.getppid())
    options = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    for port in PORTS:
        path = os.path.join(options["--session-dir"], f"{port}_{options['--node-id']}")
        with open(f"{path}.new", "w") as file:
            file.write(NONE)
        os.rename(file.name, path)  # whole where it is seen
    select.select([raylet], [], [])


if __name__ == "__main__":
    main(sys.argv[1:])
