"""The errors that a user sees.

ComposerError            one sentence for the user               exit code 1
+-- InputError           bad usage, a bad file, field or option  exit code 2
+-- BudgetExhausted      a ceiling refused further calls         exit code 3
+-- StorageError         a full disk, a read-only or lost place  exit code 1
"""


class ComposerError(Exception):
    """An error whose message is one sentence for the user. Exit code 1."""


class InputError(ComposerError):
    """Bad usage or bad input; names the file, field or option. Exit code 2."""


class BudgetExhausted(ComposerError):
    """A cost ceiling refused further calls; the run can be resumed. Exit code 3."""


class StorageError(ComposerError):
    """A place could not be written: full, read-only or gone. Exit code 1."""
