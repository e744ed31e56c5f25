"""Reading lines: whatever is wrong with the bytes is counted and never fatal."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer_pipeline.traces.records import (
    LineStats,
    Record,
    decode_any,
    encode,
    message_of,
    read_records,
)


def read(data: bytes) -> tuple[list[Any], LineStats]:
    stats = LineStats()
    return list(read_records(data.splitlines(keepends=True), stats)), stats


def line(number: int, **fields: Any) -> str:
    return json.dumps({"type": "user", "uuid": f"u{number}", **fields})


@pytest.mark.parametrize(
    ("data", "uuids", "lines", "bad", "glued"),
    [
        (line(1) + "\n" + line(2), ["u1", "u2"], 2, 0, 0),
        (line(1) + line(2) + "\n", ["u1", "u2"], 1, 0, 1),
        (line(1) + " \0\t" + line(2) + "\n", ["u1", "u2"], 1, 0, 1),
        (line(1) + '{"type": "us\n', ["u1"], 1, 1, 0),
        (line(1) + line(2) + '{"type": "us\n', ["u1", "u2"], 1, 1, 0),
        ("// a comment\n" + line(1) + "\n\n  \n", ["u1"], 2, 1, 0),
        ("[1, 2]\n" + line(1), ["u1"], 2, 1, 0),
        (line(1) + "\0\n", ["u1"], 1, 0, 0),
        ("\ufeff" + line(1) + "\n", ["u1"], 1, 0, 0),
    ],
)
def test_lines(data: str, uuids: list[str], lines: int, bad: int, glued: int) -> None:
    records, stats = read(data.encode())
    assert [record.uuid for record in records] == uuids
    assert (stats.lines, stats.bad_lines, stats.glued_lines) == (lines, bad, glued)


def test_fields_of_a_wrong_type_are_ignored_and_the_record_kept() -> None:
    records, stats = read(line(1, version=7, isMeta="yes", cwd="/x").encode())
    assert (records[0].uuid, records[0].version, records[0].is_meta) == ("u1", None, None)
    assert records[0].cwd == "/x"
    assert stats.bad_lines == 0


def test_lone_surrogates_and_invalid_bytes() -> None:
    escaped = line(1, message={"content": "a"}).replace('"a"', '"\\ud800"')
    raw = line(2, message={"content": "Z"}).encode().replace(b"Z", b"\xed\xa0\x80")
    records, stats = read(escaped.encode() + b"\n" + raw + b"\n\xff\xfe\n")
    assert [record.uuid for record in records] == ["u1", "u2"]
    assert decode_any(records[0].message) == {"content": "\ud800"}
    assert stats.bad_lines == 1


def test_unknown_types_are_counted_and_passed() -> None:
    records, stats = read(b'{"type": "brand-new", "uuid": "x"}\n{"uuid": "y"}\n')
    assert len(records) == 2
    assert stats.unknown_types == {"brand-new": 1, "": 1}


def test_a_tail_in_the_middle_of_a_record_is_read_later() -> None:
    whole = (line(1) + "\n").encode()
    records, stats = read(whole + line(2).encode()[:-5])
    assert [record.uuid for record in records] == ["u1"]
    assert stats.last_line_bad


@given(cut=st.integers(0, 400))
def test_any_cut_keeps_every_complete_record(cut: int) -> None:
    data = "".join(line(n, text="ä" * n) + "\n" for n in range(5)).encode()
    piece = data[: min(cut, len(data))]
    records, stats = read(piece)
    ends = [i for i, byte in enumerate(data) if byte == 0x0A]
    complete = sum(end <= len(piece) for end in ends)
    assert [record.uuid for record in records] == [f"u{n}" for n in range(complete)]
    assert stats.bad_lines == stats.last_line_bad


@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    _, stats = read(data)
    assert stats.bytes == len(data)


def test_messages_of_other_shapes_stay_undecoded() -> None:
    content = [{"type": "novel", "text": 5}]
    records, stats = read(line(1, message={"content": content}).encode())
    assert message_of(records[0]) is None
    assert decode_any(records[0].message) == {"content": content}
    assert stats.bad_lines == 0


def test_common_messages_come_decoded_and_so_do_those_of_other_sources() -> None:
    content = [{"type": "tool_result", "tool_use_id": "t", "content": "ä\ud83d\ude00"}]
    records, _ = read(line(1, message={"id": "m", "content": content}).encode())
    message = message_of(records[0])
    assert message is not None
    assert isinstance(message.content, list)
    assert decode_any(message.content[0].content) == "ä\U0001f600"
    raw = msgspec.Raw(json.dumps({"id": "m", "content": content}).encode())
    other = message_of(Record(message=raw))
    assert other is not None
    assert other.id == message.id


def test_half_a_character_is_marked() -> None:
    assert encode({"a": "x\ud800y"}) == '{"a":"x\ufffdy"}'.encode()
    assert encode("x\ud800y") == '"x\ufffdy"'.encode()
