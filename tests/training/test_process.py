"""A command in a process of its own: its events, its sentence, its end."""

import sys

import pytest

from composer_pipeline.errors import ComposerError, InputError
from composer_pipeline.training.events import run_process


def run(script):
    events: list[dict] = []
    run_process([sys.executable, "-c", script], cwd=".", env={}, what="it", on_event=events.append)
    return events


def test_events_are_passed_on_and_a_torn_one_is_not():
    assert run("print('{\"a\": 1}'); print('x'); print('{\"b\": tru', end='')") == [{"a": 1}]


@pytest.mark.parametrize(("code", "kind"), [(2, InputError), (1, ComposerError)])
def test_its_own_sentence_is_the_error(code, kind):
    with pytest.raises(kind) as error:
        run(f"import sys; print('error: no such thing'); sys.exit({code})")
    assert str(error.value) == "no such thing"
    assert isinstance(error.value, InputError) == (code == 2)
