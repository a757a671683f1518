"""The one exception for bad input."""


class UserError(ValueError):
    """Bad input of the user: one full sentence that says what, where, got, expected and what to do.

    The command line prints it as `error: <sentence>` and exits with code 2.
    """
