"""Amounts that a user types: every option that takes one refuses what is no ceiling."""

from decimal import Decimal

import pytest

from composer_pipeline.cli.common import usd
from composer_pipeline.errors import InputError


@pytest.mark.parametrize("text", ["0", "0.00", "-1", "NaN", "Infinity", "a dollar", ""])
def test_what_is_no_ceiling_names_its_option(text: str) -> None:
    with pytest.raises(InputError, match="--judge-max-usd"):
        usd(text, "--judge-max-usd")


def test_the_least_ceiling_is_exact() -> None:
    assert usd("0.000000000001", "--max-usd") == Decimal(1) / 10**12
