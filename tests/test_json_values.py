"""Getters answer with the type asked for or with nothing; strings are found at any depth."""

from typing import Any

import pytest

from composer_pipeline.files import flag, integer, mapping_at, strings, text

ODD: list[Any] = [None, True, 0, 1.5, "", "x", [], ["x"], {}, {"a": 1}]


@pytest.mark.parametrize(
    ("getter", "kept"),
    [(text, ["", "x"]), (integer, [0]), (flag, [True])],
)
def test_a_getter_keeps_its_type_alone(getter: Any, kept: list[Any]) -> None:
    assert [repr(value) for value in ODD if getter(value) is not None] == list(map(repr, kept))


@pytest.mark.parametrize("value", [None, [], "x", {}, {"data": None}, {"data": [1]}])
def test_what_is_no_object_is_an_empty_one(value: Any) -> None:
    assert mapping_at(value, "data") == {}
    assert mapping_at({"data": {"a": 1}}, "data") == {"a": 1}


def test_strings_are_found_in_order_without_the_names_of_fields() -> None:
    value = {"a": "1", "b": [{"c": "2"}, 3, None, ["4", True]], "d": {}}
    assert list(strings(value)) == ["1", "2", "4"]
    assert list(strings("alone")) == ["alone"]
