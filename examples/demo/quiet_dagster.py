"""``dagster dev`` without two of its sentences, which would be wrong here.

The instance settings that it says are not used are the checkout's, copied by ``web``; the command
that it recommends reads no ``workspace.yaml``.
"""

import logging
import warnings

from dagster._cli import cli


def _fits(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Found a dagster instance configuration value")


if __name__ == "__main__":
    warnings.filterwarnings("ignore", message="Function `dev_command` is superseded")
    logging.getLogger("dagster").addFilter(_fits)
    cli(auto_envvar_prefix="DAGSTER_CLI")
