"""The errors that a user sees, with their exit codes."""


class ComposerError(Exception):
    """An error whose message is one sentence for the user. Exit code 1."""


class InputError(ComposerError):
    """Bad usage or bad input; names the file, field or option. Exit code 2."""


class BudgetExhausted(ComposerError):
    """A cost ceiling refused further calls; the run can be resumed. Exit code 3."""


class StorageError(ComposerError):
    """A place could not be written: full, read-only or gone. Exit code 1."""
