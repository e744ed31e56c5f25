"""Fuzz what a provider may answer: no traceback, and the ledger is the provider's books.

A server on plain sockets, in this process and without our code, spoils a good reply for every
call: bytes flipped, cut, repeated; fields of wrong types; statuses, headers, encodings. It
keeps books by the documented rules alone: what it generated is billed, whatever became of the
reply, and it can be asked what a generation cost. The replies go through the whole engine:
client, ledger, judgement, lake. Usage: ``python benchmarks/fuzz_replies.py [--cases 100000]``.
"""

import argparse
import asyncio
import copy
import gzip
import json
import os
import random
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

from composer_pipeline.lake.store import Lake
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.run import replay
from composer_pipeline.teachers.teachers import TeacherSet
from tests.fixtures.lake_states import write_sessions

_ODD: list[Any] = [
    None, True, False, 0, -1, 2**63, 2**70, 1.5, 1e300, "", "\ud800", "\0", "x" * 5000, [], {},
    [[]], {"a": 1}, [None], "NaN", "stop", "error", "tool_calls",
]  # fmt: skip
_RAW = [b"NaN", b"-Infinity", b"1E+999999", b"9" * 5000, b"[" * 5000, b'"\xff"', b"nul", b'"\\u00']


class Books:
    """What the server billed, by generation, in picodollars."""

    def __init__(self) -> None:
        self.bills: dict[str, int] = {}
        self.kinds: Counter[str] = Counter()


class Spoiler:
    """Makes odd responses from a seed; tells the books what was generated."""

    def __init__(self, seed: int, books: Books) -> None:
        self.random = random.Random(seed)
        self.books = books

    def response(self) -> bytes:
        """Return the bytes of one response."""
        number = len(self.books.bills) + self.books.kinds["refused"]
        if self.random.random() < 0.05:
            return self._refusal()
        generation = f"gen-{number:08d}"
        bill = self.random.randrange(1, 2_000_000)
        reply = self._reply(generation, bill)
        for _ in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            self._spoil(reply)
        # The books are written before anybody knows what becomes of the bytes.
        self.books.bills[generation] = self._stated(reply, bill)
        raw = json.dumps(reply).encode()
        return self._wrapped(self._bytes(raw), generation)

    def _reply(self, generation: str, bill: int) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "Look first."}
        if self.random.random() < 0.6:
            call = {"name": "Bash", "arguments": json.dumps({"command": "ls"})}
            message["tool_calls"] = [{"id": "c", "type": "function", "function": call}]
        reason = "tool_calls" if "tool_calls" in message else "stop"
        return {
            "id": generation,
            "model": "loopback/careful-20261101",
            "provider": "Odd",
            "choices": [{"index": 0, "finish_reason": reason, "message": message}],
            "usage": {
                "prompt_tokens": 100, "completion_tokens": 10, "is_byok": False,
                "cost": f"COST{bill:012d}",
                "prompt_tokens_details": {"cached_tokens": 5},
            },
        }  # fmt: skip

    def _spoil(self, reply: dict[str, Any]) -> None:
        """Replace, drop or add one value somewhere, but not a part of a true cost."""
        places: list[tuple[Any, Any]] = []

        def walk(value: Any) -> None:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in list(items):
                places.append((value, key))
                if isinstance(inner, dict | list):
                    walk(inner)

        walk(reply)
        where, key = self.random.choice(places)
        kind = self.random.randrange(4)
        if kind == 0 and isinstance(where, dict):
            del where[key]
        elif kind == 1 and isinstance(where, dict):
            where[self.random.choice(["error", "delta", "refusal", "cost_details", "x"])] = (
                self._odd()
            )
        elif key == "cost":  # a number here would be believed: it is what the provider charged
            where[key] = self.random.choice([None, -1, "free", [], True, {}])
        else:
            where[key] = self._odd()

    @staticmethod
    def _stated(reply: dict[str, Any], bill: int) -> int:
        """Return the bill; a cost that is still stated is a true one."""
        usage = reply.get("usage")
        counts = usage if isinstance(usage, dict) else {}
        if counts.get("is_byok") is True:
            counts["is_byok"] = False  # nobody's own key was used here
        listed = reply.get("choices")
        choices = [c for c in listed if isinstance(c, dict)] if isinstance(listed, list) else []
        said = [c.get("message", c.get("delta")) for c in choices]
        answer = any(
            message.get(name)
            for message in said
            if isinstance(message, dict)
            for name in ("content", "tool_calls", "refusal")
        )
        tokens = counts.get("completion_tokens")
        generated = type(tokens) is int and 0 < tokens <= 10**9
        if answer or generated or str(counts.get("cost")).startswith("COST"):
            return bill
        ends = [choice.get("finish_reason") for choice in choices]
        failed = bool(ends) and all(end == "error" for end in ends)
        nothing = not any(ends) and type(tokens) is int and tokens == 0
        return 0 if reply.get("error") or failed or nothing else bill

    def _bytes(self, raw: bytes) -> bytes:
        rng = self.random
        # The cost is written as an exact decimal where the marker is still there.
        start = raw.find(b'"COST')
        if start >= 0:
            pico = int(raw[start + 5 : start + 17])
            raw = raw[:start] + f"{Decimal(pico).scaleb(-12):f}".encode() + raw[start + 18 :]
        kind = rng.randrange(12)
        at = rng.randrange(len(raw))
        if kind == 0:
            self.books.kinds["cut"] += 1
            return raw[:at]
        if kind == 1:
            return self._outside_the_cost(raw, rng.randbytes(1))
        if kind == 2:
            return self._outside_the_cost(raw, rng.choice(_RAW))
        if kind == 3:
            return b"\xef\xbb\xbf" + raw
        if kind == 4:
            return raw + rng.choice([b"\n{}", b"x", b"\0", raw])
        if kind == 5:
            return b": hi\n\ndata: " + raw + b"\n\ndata: [DONE]\n\n"
        return raw

    def _outside_the_cost(self, raw: bytes, junk: bytes) -> bytes:
        """Put junk in a place where it cannot make another number of the cost."""
        cut = raw.find(b'"usage"')
        at = self.random.randrange(cut if cut > 0 else len(raw))
        return raw[:at] + junk + raw[at + self.random.randrange(2) :]

    def _wrapped(self, body: bytes, generation: str) -> bytes:
        rng = self.random
        status = rng.choice([200] * 12 + [201, 203, 206])
        headers = {"X-Generation-Id": generation, "Content-Type": "application/json"}
        kind = rng.randrange(16)
        if kind == 0:
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        elif kind == 1:
            body, headers["Content-Encoding"] = zlib.compress(body), "deflate"
        elif kind == 2:
            headers["Content-Encoding"] = "gzip"
        elif kind == 3:
            headers["Content-Type"] = rng.choice(["text/plain", "text/event-stream", "x" * 300])
        elif kind == 4:
            headers |= {
                "X-OpenRouter-Cache-Source-Id": "gen-x",
                "X-OpenRouter-Cache-Status": "MISS",
            }
        elif kind == 5:
            headers["Retry-After"] = rng.choice(["nan", "1e999", "Wed, 21 Oct 99999999999"])
        self.books.kinds["generated"] += 1
        return _response(status, headers, body)

    def _odd(self) -> Any:
        return copy.deepcopy(self.random.choice(_ODD))  # it may itself be spoiled later

    def _refusal(self) -> bytes:
        self.books.kinds["refused"] += 1
        rng = self.random
        error: dict[str, Any] = {"code": rng.choice([429, "429", 2**70, None]), "message": "m"}
        if rng.random() < 0.5:
            error["metadata"] = rng.choice([{"error_type": self._odd()}, [], "x", None])
        status = rng.choice([400, 429, 429, 503])
        after = {"Retry-After": "0", "Content-Type": "application/json"}
        return _response(status, after, json.dumps({"error": error}).encode())


def _response(status: int, headers: dict[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} Odd", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Server(threading.Thread):
    """Answers every call with the spoiler's bytes, and tells what a generation cost."""

    def __init__(self, spoiler: Spoiler) -> None:
        super().__init__(daemon=True)
        self.spoiler = spoiler
        self.calls = 0
        self.ready = threading.Event()

    def run(self) -> None:
        """Serve until the process ends."""
        asyncio.run(self._main())

    async def _main(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await asyncio.Event().wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length = 0
                while (header := await reader.readline()).strip():
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                await reader.readexactly(length)
                writer.write(self._answer(line.decode()))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    def _answer(self, line: str) -> bytes:
        if "/chat/completions" in line:
            self.calls += 1
            return self.spoiler.response()
        bill = self.spoiler.books.bills.get(line.partition("id=")[2].partition(" ")[0])
        if bill is None:
            return _response(404, {}, b"{}")
        cost = f"{Decimal(bill).scaleb(-12):f}"
        return _response(200, {}, b'{"data":{"total_cost":%s}}' % cost.encode())


def one_round(folder: Path, seed: int, states: int) -> tuple[int, str]:
    """Replay a fresh lake against spoiled answers; return the calls, and what differed."""
    lake = Lake(folder / "lake")
    write_sessions(lake, sessions=max(1, states // 20), turns=20)
    books = Books()
    server = Server(Spoiler(seed, books))
    server.start()
    server.ready.wait(10)
    recipe = Path(__file__).parents[1] / "recipes" / "teachers" / "demo.yaml"
    data = TeacherSet.load(recipe).model_dump()
    data["endpoint"]["base_url"] = f"http://127.0.0.1:{server.port}/api/v1"
    data["teachers"] = data["teachers"][:1]
    data["teachers"][0]["concurrency"] = 32
    data["teachers"][0]["prompt_cache"] = "none"
    data["limits"] |= {
        "attempts": 3, "backoff_s": 0, "backoff_cap_s": 0, "read_timeout_s": 20,
        "recover_after_s": 0,
    }  # fmt: skip
    teachers = TeacherSet.model_validate(data)
    path = folder / "ledger.db"
    for _ in range(3):  # the later ones ask what unknown generations cost
        replay(lake, teachers, max_usd=Decimal(1000), run_id="fuzz", ledger=path)
    with Ledger(path) as ledger:
        held = ledger.status()["global"]
    billed = sum(books.bills.values())
    rows = lake.rows("replies")
    kept = {row["generation_id"] for row in rows if row["raw"]}
    problems = []
    if (held.spent, held.reserved, held.unknown) != (billed, 0, 0):
        problems.append(f"{held} is not the {billed} of the books")
    # A reply cut on its way is asked for once more; this server has no cache, so it is bought
    # twice. Any other bill has its row.
    lost = len(books.bills) - len(kept & books.bills.keys())
    if lost > books.kinds["cut"]:
        problems.append(f"{lost} bills without a row, {books.kinds['cut']} replies were cut")
    return server.calls, "; ".join(problems)


def main() -> int:
    """Run rounds until the cases are done; exit 1 where a round differed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--states", type=int, default=2000, help="of a round")
    options = parser.parse_args()
    os.environ.pop("COMPOSER_OPENROUTER_URL", None)
    done = differed = 0
    started = time.monotonic()
    seed = options.seed
    while done < options.cases:
        with tempfile.TemporaryDirectory() as folder:
            calls, problem = one_round(Path(folder), seed, options.states)
        done += calls
        differed += bool(problem)
        rate = done / (time.monotonic() - started)
        print(f"seed {seed}: {done} replies, {rate:.0f}/s {problem}", flush=True)
        seed += 1
    print(f"{done} replies, 0 tracebacks, {differed} rounds that differ from the books")
    return 1 if differed else 0


if __name__ == "__main__":
    sys.exit(main())
