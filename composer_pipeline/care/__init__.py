"""A lake looked after: what is in it, whether it is whole, and what shall no longer be in it.

Does not belong here: the environment (``doctor``), and what a stage writes.
"""

from composer_pipeline.care.forget import ForgetReport, forget
from composer_pipeline.care.redact_again import redact_again
from composer_pipeline.care.status import StatusReport, status
from composer_pipeline.care.verify import VerifyReport, verify
from composer_pipeline.care.who import of_project
from composer_pipeline.care.withdraw import WithdrawReport, withdraw

__all__ = [
    "ForgetReport",
    "StatusReport",
    "VerifyReport",
    "WithdrawReport",
    "forget",
    "of_project",
    "redact_again",
    "status",
    "verify",
    "withdraw",
]
