"""The errors that a user can cause or must decide about.

Belongs here: exception types that the command line and the Dagster assets turn
into an exit code. Does not belong here: errors of one room that its callers
never see; errors of programming, which propagate as they are.
"""


class ComposerError(Exception):
    """An error whose message is one sentence for the user. Exit code 1."""


class InputError(ComposerError):
    """Bad usage or bad input; names the file, field or option. Exit code 2."""


class BudgetExhausted(ComposerError):
    """A cost ceiling refused further calls; the run can be resumed. Exit code 3."""
