"""What the command line prints: streams that take every name, and what to do when they cannot be written."""

import io
import os
import sys


def prepare_streams() -> None:
    """From now on characters that a stream cannot show are escaped, and a stream that is closed swallows everything."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """What is still to be written to stdout goes nowhere, so that the end of the process does not fail with it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def one_line(text: object) -> str:
    """`text` with its control characters (of odd file names) escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(text))


def sentence_of(error: OSError) -> str:
    """What to say of an error that nobody has put into words."""
    what = "the output or a file" if error.filename is None else os.fsdecode(error.filename)
    return (
        f"{what} cannot be read or written: {error.strerror or error}; check its name, its permissions and free space."
    )
