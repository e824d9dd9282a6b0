"""What the code of an actor prints is kept, line by line, within bounds."""

import io
import logging
import sys

import pytest

from trainers.runtime.actors import printed
from trainers.runtime.actors.printed import LINE, Captured, Printing


def texts(printing: Printing) -> list[tuple[str, str]]:
    found = printing.take()
    return [] if found is None else [(stream, line) for _, stream, line in found.lines]


def test_print_standard_error_and_logging_are_taken_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    printing = Printing("worker/2")
    handler = logging.StreamHandler(sys.stderr)
    logging.getLogger().addHandler(handler)
    try:
        printing.capture()
        print("one", "two", end="")
        print(" three\nfour")
        sys.stderr.write("10 %\r20 %\r30 %\n")
        logging.getLogger("mine").error("five")
        print("not ended", end="")
    finally:
        logging.getLogger().removeHandler(handler)
    assert [line for _, line in texts(printing)] == ["one two three", "four", "30 %", "five"]
    assert out.getvalue() == "one two three\nfour\n30 %\nfive\n", "Ray's own file has it too"
    print()
    assert texts(printing) == [("stdout", "not ended")]
    assert printing.take() is None


def test_who_prints_without_end_fills_neither_memory_nor_disk() -> None:
    now_s, below = 0.0, io.StringIO()
    printing = Printing("worker/0", lambda: now_s)
    stream = Captured("stdout", below, printing)
    for number in range(20_000):
        stream.write(f"{number}\n")
    found = printing.take()
    assert found is not None
    assert (len(found.lines), found.left_out) == (printed.BURST_LINES, 20_000 - printed.BURST_LINES)
    assert below.getvalue().count("\n") == printed.BURST_LINES
    now_s = 10.0  # it may say something again
    stream.write("a\nb\n")
    assert [line for _, line in texts(printing)] == ["a", "b"]
    now_s = 1e5
    stream.write("x" * 1_000_000)  # one line without an end
    assert len(stream.begun) <= LINE
    assert sum(len(line) for _, line in texts(printing)) <= printed.BURST_BYTES
    now_s = 1e9
    printing.total_left = 3.0
    stream.write("\nlong\n")
    found = printing.take()
    assert found is not None
    assert (found.lines, found.left_out > 0) == ((), True)
