"""Fuzz the reader: no crash, no hang, no state that the file does not hold.

Takes a small session apart and spoils it: bytes flipped, cut, repeated or moved, fields
given wrong types, lines glued. Usage: ``python benchmarks/fuzz_traces.py [--cases 100000]``.
"""

import argparse
import copy
import json
import random
import sys
import time
from collections import Counter
from typing import Any

from composer_pipeline.redaction.redact import Redacted
from composer_pipeline.traces.content_store import Redactor
from composer_pipeline.traces.messages import Composer, MessageStore
from composer_pipeline.traces.parse import analyse

_ODD: list[Any] = [
    None, True, -1, 2**70, 1.5, "", "\ud800", "x" * 300, [], {}, [[]], {"a": 1}, [None],
    "s-1", "s-3", "m1", "t1",
]  # fmt: skip
_SLOWEST = 2.0


def session(rng: random.Random) -> list[dict[str, Any]]:
    """Return the records of a small session with most of what sessions hold."""
    records: list[dict[str, Any]] = []

    def add(kind: str, **fields: Any) -> None:
        number = len(records)
        record: dict[str, Any] = {"parentUuid": f"s-{number - 1}" if number else None, "type": kind}
        record |= {"uuid": f"s-{number}", "sessionId": "s", "isSidechain": False}
        record |= {"timestamp": f"2026-11-16T10:00:{number % 60:02d}.000Z", "cwd": "/srv/p"}
        records.append(record | fields)

    add("user", message={"role": "user", "content": "go"})
    for turn in range(rng.randrange(1, 4)):
        name, call = f"m{turn}", f"t{turn}"
        text = [{"type": "text", "text": "hm"}]
        use = [{"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "ls"}}]
        answer = [{"type": "tool_result", "tool_use_id": call, "content": "out"}]
        add("assistant", message={"id": name, "model": "x", "content": text})
        add("progress", data={})
        add("assistant", message={"id": name, "model": "x", "content": use})
        add("user", message={"role": "user", "content": answer}, toolUseResult={"x": 1})
    kind = rng.randrange(4)
    if kind == 0:
        metadata = {"preservedMessages": {"anchorUuid": f"s-{len(records) + 1}", "uuids": ["s-1"]}}
        add("system", subtype="compact_boundary", compactMetadata=metadata, parentUuid=None)
        add("user", isCompactSummary=True, message={"role": "user", "content": "sum"})
    elif kind == 1:
        add(
            "system",
            subtype="microcompact_boundary",
            microcompactMetadata={"compactedToolIds": ["t0"]},
        )
    elif kind == 2:
        add("attachment", attachment={"type": "queued_command", "prompt": "also"}, rendered="r")
    add(
        "assistant",
        message={"id": "last", "model": "x", "content": [{"type": "text", "text": "."}]},
    )
    return records


def spoil(records: list[dict[str, Any]], rng: random.Random) -> bytes:
    """Return the bytes of a session after a few random changes."""
    records = json.loads(json.dumps(records))
    for _ in range(rng.randrange(4)):
        at: Any = rng.choice(records)
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
                at = at[key]
                continue
            at[key] = copy.deepcopy(rng.choice(_ODD))
            break
    if rng.random() < 0.3:
        rng.shuffle(records)
    lines = [json.dumps(record, ensure_ascii=rng.random() < 0.9) for record in records]
    data = bytearray("\n".join(lines).encode("utf-8", "surrogatepass") + b"\n")
    for _ in range(rng.choice((0, 0, 1, 3))):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 1, 8, 200)))
        change = rng.randrange(5)
        if change == 0:
            del data[start:end]
        elif change == 1:
            data[start:start] = data[start:end] * 2
        elif change == 2:
            data[start:end] = bytes(rng.randrange(256) for _ in range(end - start))
        elif change == 3:
            del data[start:]
        else:
            data[start:start] = rng.choice((b"\n", b"}{", b"\0", b"//", b"[[[[", b"\xff", b'"'))
    return bytes(data)


def check(data: bytes) -> None:
    """Read spoiled bytes; fail where a state is not in them."""
    graph, stats, facts = analyse(
        data, redactor=Redactor(lambda raw, names: [Redacted(one, Counter()) for one in raw])
    )
    assert facts["states"] <= facts["responses"] <= stats.records
    compose = Composer(graph, MessageStore())
    plain = data.decode("utf-8", "replace")
    for number in graph.states():
        node = graph.nodes[number]
        assert graph.path_to(number)[-1] == number
        compose.node(node)
        json.loads(compose.action(node))
        # The id stands in the bytes, in one of the forms that JSON allows for it.
        forms = {node.key, json.dumps(node.key)[1:-1]}
        clean = not any(0xD800 <= ord(char) <= 0xDFFF for char in node.key)
        if clean and "\\u" not in plain and "\ufffd" not in plain:
            assert any(form in plain for form in forms), node.key
        for call in node.calls:
            assert json.dumps(call.id)[1:-1] in plain or "\\u" in plain or "\ufffd" in plain


def fuzz(cases: int, seed: int = 0) -> int:
    """Check this many spoiled sessions; return how many were checked."""
    for case in range(cases):
        rng = random.Random(f"{seed} {case}")
        data = spoil(session(rng), rng)
        begin = time.perf_counter()
        try:
            check(data)
        except Exception as error:
            raise AssertionError(f"case {seed} {case}: {error!r} on {data!r}") from error
        assert time.perf_counter() - begin < _SLOWEST, f"case {seed} {case} hangs"
    return cases


def main() -> int:
    """Run the long form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    begin = time.time()
    done = fuzz(options.cases, options.seed)
    seconds = time.time() - begin
    print(f"{done} spoiled sessions in {seconds:.0f} s: no crash, no hang, no state invented")
    return 0


if __name__ == "__main__":
    sys.exit(main())
