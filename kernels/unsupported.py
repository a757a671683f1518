"""What an implementation raises, before it has written anything, when it cannot do what it is asked."""


class Unsupported(Exception):  # noqa: N818
    """The message says why, as the end of a sentence: "hidden size 20,000 is above 16,384"."""
