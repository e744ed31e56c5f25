"""Amounts of money at the ends of what a ledger holds."""

import pytest

from composer_pipeline.errors import InputError
from composer_pipeline.money import PICO, to_pico


def test_an_amount_of_which_two_do_not_fit_in_the_ledger_is_refused() -> None:
    most = 2**62 - 1
    assert to_pico(most / PICO) == most
    for usd in ((most + 1) / PICO, -(most + 1) / PICO):
        with pytest.raises(InputError, match="more than the ledger can hold"):
            to_pico(usd)
