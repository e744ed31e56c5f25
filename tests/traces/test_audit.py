"""What a day's metadata say of its states."""

from composer_pipeline.actions import Action, ToolCall
from composer_pipeline.lake.store import Lake
from composer_pipeline.traces.ingest import day_audit
from tests.fixtures.lake_states import DAY, write_session


def test_an_error_turn_without_words_has_no_hint(lake: Lake) -> None:
    turns = [(Action("", (ToolCall("Bash", {"command": "x"}),)), "no")] * 2
    write_session(lake, "s", turns, error_turns=[0, 1])
    rows = [{k: v for k, v in row.items() if k != "day"} for row in lake.rows("states")]
    hints = (None, "no such command")
    lake.write(
        "states",
        [
            {**row, "error_kind": "exit_code", "hint_source": "exit_code", "hint": hint}
            for row, hint in zip(rows, hints, strict=True)
        ],
        day=DAY,
    )
    (found,) = day_audit(lake, DAY, {})["error_kinds"]
    assert (found["states"], found["hints"]) == (2, 1)
