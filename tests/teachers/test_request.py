"""What is sent, byte for byte, and the two names of a call."""

import json
from typing import Any

import pytest

from composer_pipeline.chat.convert import Conversion
from composer_pipeline.teachers.request import Request, serialise
from composer_pipeline.teachers.teachers import Teacher

#: Texts that look like a cap, in every place where a state may bring its own.
CONVERSION = Conversion(
    [{"role": "user", "content": '"max_price":{"prompt":9},"plugins":['}],
    [{"type": "function", "function": {"name": "x"}, "max_price": {"prompt": 9}}],
    {},
    {},
    "recorded",
)
BASE = {
    "name": "t", "family": "f", "model": "a/m", "licence": "MIT",
    "max_price": {"prompt": "1.25", "completion": "2"},
}  # fmt: skip


def request(api: str = "openrouter", **fields: Any) -> Request:
    return serialise(Teacher.model_validate(BASE | fields), CONVERSION, "s", api=api)


def test_digests_are_frozen() -> None:
    """Ledgers compare them with those of bytes that were sent earlier."""
    assert request().digest("e") == FROZEN["openrouter"]
    assert request(cache_control="1h").digest("e") == FROZEN["1h"]
    assert request("openai").digest("e") == request("openai").key("e") == FROZEN["openai"]


FROZEN = {
    "openrouter": "98bd11e751206101bfbee7bf06d682963d90afd1a9bc22e389d30dbc4508d5a9",
    "1h": "181b2eaa7b4019115d0dfbd7a9229042c71f7819bedfbc1b3e45f702d5a3cc0c",
    "openai": "0cca38e0efc5f997566eefe1f49aa32293b20620594af2235a5ef6d259913b26",
}


def test_the_key_is_of_everything_but_the_cap() -> None:
    first, other = request(), request(max_price={"prompt": "0.0000001", "completion": "3.5"})
    assert first.key("e") == other.key("e") != first.digest("e") != other.digest("e")
    assert first.key("e") != first.key("f")
    assert first.key("e") != request(max_tokens=99).key("e")
    assert first.key("e") != request(provider={"zdr": False}).key("e")


@pytest.mark.parametrize("cache", ["off", "5m"])
def test_the_cap_is_where_it_is_said_to_be(cache: str) -> None:
    found = request(cache_control=cache)
    sent = json.loads(found.body)
    cap = found.body[found.start : found.end]
    assert json.loads(cap) == sent["provider"]["max_price"]
    assert list(sent["provider"])[-1] == "max_price"
    assert request("openai").end == 0
