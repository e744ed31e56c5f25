"""Any order of everything that owners can do, against a model in plain Python."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from composer_pipeline.money import Pico
from composer_pipeline.teachers.ledger import operations
from composer_pipeline.teachers.ledger.ledger import Ledger
from composer_pipeline.teachers.ledger.sweep import sweep
from composer_pipeline.teachers.ledger.transaction import retire
from composer_pipeline.teachers.ledger.values import (
    AttemptClosed,
    Bill,
    CacheHit,
    Call,
    NotQuiescent,
    Reply,
)

pytestmark = pytest.mark.slow

#: Kinds of questions: the worst case belongs to the bytes; the run, whose provider key pays,
#: to the question.
AMOUNT = {"a": 7, "b": 20, "c": 33}
RUN = {"a": "run:1", "b": "run:1", "c": "run:2"}
SCOPES = ["run:1", "run:2", "global", "teacher:x", "teacher:y", "day:2026-11-16"]
OPEN = ("sent",)
#: A question is asked under one of two price caps; what it can cost more under the second.
CAPS = {"A": 0, "B": 5}
#: kind, price cap, whether to repeat an answered key, teacher, headroom, share of the worst case
ASKED = st.tuples(
    st.sampled_from("abc"),
    st.sampled_from("AB"),
    st.sampled_from([False, False, False, True]),
    st.sampled_from("xy"),
    st.sampled_from([0, 0, 15]),
    st.integers(0, 100),
)


class Machine(RuleBasedStateMachine):
    """``self.attempts`` is the model; ``truth`` of an attempt is what the provider billed."""

    def __init__(self, fresh: Callable[[], str | Path]) -> None:
        super().__init__()
        self.target = fresh()
        self.ledgers = [Ledger(self.target) for _ in range(3)]
        self.dead: list[Ledger] = []
        self.attempts: dict[str, dict[str, Any]] = {}
        self.replies: dict[str, str] = {}
        self.ceilings: dict[str, int | None] = dict.fromkeys(SCOPES)
        self.quarantined: set[str] = set()
        self.over: set[str] = set()
        self.serial = dict.fromkeys("abc", 0)
        #: What sweeps charged a scope beyond the cost of its attempts.
        self.careful = dict.fromkeys(SCOPES, 0)

    def teardown(self) -> None:
        for ledger in self.ledgers + self.dead:
            ledger.close()

    # -- the model -------------------------------------------------------------------

    def sums(self, scope: str) -> tuple[int, int, int]:
        there = [a for a in self.attempts.values() if scope in a["scopes"]]
        return (
            sum(a["cost"] or 0 for a in there if a["state"] in ("done", "swept"))
            + self.careful[scope],
            sum(a["reserve"] for a in there if a["state"] in OPEN),
            sum(a["reserve"] for a in there if a["state"] == "unknown"),
        )

    def is_dead(self, owner: str) -> bool:
        return owner in {ledger.owner for ledger in self.dead}

    def adopt(self, owner: str) -> int:
        count = 0
        for attempt in self.attempts.values():
            if attempt["owner"] == owner and attempt["state"] in OPEN:
                attempt["state"] = "unknown"
                count += 1
        return count

    def pick(self, data: st.DataObject, *states: str) -> tuple[str, dict[str, Any]]:
        found = [i for i, a in self.attempts.items() if a["state"] in states]
        chosen = data.draw(st.sampled_from(found))
        return chosen, self.attempts[chosen]

    def has(self, *states: str) -> bool:
        return any(a["state"] in states for a in self.attempts.values())

    def any_ledger(self, data: st.DataObject) -> Ledger:
        return data.draw(st.sampled_from(self.ledgers))

    def store(self, key: str, outcome: str) -> None:
        if self.replies.get(key) != "billed":
            self.replies[key] = outcome

    # -- what owners do --------------------------------------------------------------

    @initialize(ceiling=st.integers(100, 600))
    def start(self, ceiling: int) -> None:
        self.ledgers[0].do(operations.set_ceiling("global", Decimal(ceiling) / 10**12))
        self.ceilings["global"] = ceiling

    @precondition(lambda self: self.attempts)
    @rule(data=st.data(), scope=st.sampled_from(SCOPES), value=st.none() | st.integers(60, 900))
    def set_ceiling(self, data: st.DataObject, scope: str, value: int | None) -> None:
        if value is not None:  # a ceiling below what is used would only be trivially passed
            value = max(value, sum(self.sums(scope)))
        usd = None if value is None else Decimal(value) / 10**12
        self.any_ledger(data).do(operations.set_ceiling(scope, usd))
        self.ceilings[scope] = value

    @rule(data=st.data(), asked=st.lists(ASKED, min_size=1, max_size=5))
    def reserve(self, data: st.DataObject, asked: list[tuple[Any, ...]]) -> None:
        for one in asked:
            self.reserve_one(data, *one)

    def reserve_one(
        self, data: st.DataObject, kind: str, cap: str, repeat: bool, *rest: Any
    ) -> None:
        if f"{kind}{self.serial[kind]}" in self.replies and not repeat:
            self.serial[kind] += 1
        self.reserve_with(data, f"{kind}{self.serial[kind]}", cap, *rest)

    @rule(data=st.data(), kind=st.sampled_from("abc"), shares=st.permutations([20, 80]))
    def lose_under_both_caps(self, data: st.DataObject, kind: str, shares: list[int]) -> None:
        self.serial[kind] += 1
        question = f"{kind}{self.serial[kind]}"
        for cap, share in zip("AB", shares, strict=True):
            before = set(self.attempts)
            self.reserve_with(data, question, cap, "y", 0, share)
            for number in set(self.attempts) - before:
                self.any_ledger(data).do(operations.mark_unknown(number, "reset"))
                self.attempts[number]["state"] = "unknown"

    def reserve_with(
        self,
        data: st.DataObject,
        question: str,
        cap: str,
        teacher: str,
        headroom: int,
        share: int,
    ) -> None:
        ledger = self.any_ledger(data)
        amount, run = AMOUNT[question[0]] + CAPS[cap], RUN[question[0]]
        scopes = [run, f"teacher:{teacher}", "global", "day:2026-11-16"]
        call = Call(question, teacher, "session", "2026-11-16", {})
        got = ledger.do(
            operations.reserve(
                question, Pico(amount), scopes, call,
                digest=question + cap, headroom=Pico(headroom),
            )
        )  # fmt: skip
        holders = [a for a in self.attempts.values() if a["key"] == question and a["state"] in OPEN]
        if outcome := self.replies.get(question):
            assert (got.kind, got.outcome) == ("cached", outcome)
            return
        if teacher in self.quarantined:
            assert got.kind == "quarantined"
            return
        if any(not self.is_dead(a["owner"]) for a in holders):
            assert got.kind == "busy"
            return
        for holder in holders:
            self.adopt(holder["owner"])
        for scope in scopes:
            ceiling = self.ceilings[scope]
            spent, reserved, unknown = self.sums(scope)
            if ceiling is None or spent + reserved + unknown + amount + headroom <= ceiling:
                continue
            waits = reserved and spent + unknown + amount + headroom <= ceiling
            assert (got.kind, got.scope) == ("wait" if waits else "refused", scope)
            return
        assert got.kind == "reserved"
        self.attempts[got.attempt] = {
            "key": question,
            "digest": question + cap,
            "state": "sent",
            "reserve": amount,
            "cost": None,
            "scopes": scopes,
            "owner": ledger.owner,
            "generation": "",
            "truth": amount * share // 100,
            "teacher": teacher,
        }

    @precondition(lambda self: self.has("sent", "unknown"))
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        """Also late, by an owner that was adopted although it lived."""
        number, attempt = self.pick(data, "sent", "unknown")
        cost = attempt["truth"]
        generation = f"gen-{number}"
        reply = Reply(200, number.encode(), generation)
        assert self.any_ledger(data).do(operations.settle(number, Bill(Pico(cost)), reply))
        attempt |= {"state": "done", "cost": cost, "generation": generation}
        self.store(attempt["key"], "billed")

    @precondition(lambda self: self.has("sent"))
    @rule(data=st.data(), extra=st.integers(1, 9))
    def settle_above_the_bound(self, data: st.DataObject, extra: int) -> None:
        number, attempt = self.pick(data, "sent")
        cost = attempt["reserve"] + extra
        assert not self.any_ledger(data).do(
            operations.settle(number, Bill(Pico(cost)), Reply(200, b"!"))
        )
        attempt |= {"state": "done", "cost": cost, "truth": cost}
        self.store(attempt["key"], "billed")
        self.quarantined.add(attempt["teacher"])
        self.over.update(attempt["scopes"])

    @precondition(lambda self: self.quarantined)
    @rule(data=st.data())
    def lift(self, data: st.DataObject) -> None:
        teacher = data.draw(st.sampled_from(sorted(self.quarantined)))
        assert self.any_ledger(data).do(operations.lift_quarantine(teacher))
        self.quarantined.remove(teacher)

    def recoverable(self) -> list[str]:
        """Unknown attempts whose key has no reply, as a recovery finds them."""
        return [
            i
            for i, a in self.attempts.items()
            if a["state"] == "unknown" and not a["generation"] and a["key"] not in self.replies
        ]

    @precondition(lambda self: self.recoverable())
    @rule(data=st.data(), cap=st.sampled_from("AB"), told=st.booleans())
    def recover(self, data: st.DataObject, cap: str, told: bool) -> None:
        """Ask again, under any cap; the provider's cache answers, and names what it billed.

        It answers with what the very same bytes have bought.
        """
        lost = self.attempts[data.draw(st.sampled_from(self.recoverable()))]
        before = set(self.attempts)
        self.reserve_with(data, lost["key"], cap, "x", 0, 0)
        if not set(self.attempts) - before:
            return
        (number,) = set(self.attempts) - before
        attempt = self.attempts[number]
        same = [
            a
            for a in self.attempts.values()
            if a["digest"] == attempt["digest"] and a is not attempt and not a["generation"]
        ]
        sources = [a for a in same if a["state"] == "unknown"]
        source = f"source-of-{number}"
        price = Pico(sources[0]["truth"] if sources else 3) if told else None
        reply = Reply(200, number.encode(), f"hit-{number}", 1.0)
        assert self.any_ledger(data).do(operations.settle(number, CacheHit(source, price), reply))
        attempt |= {"state": "done", "cost": 0, "truth": 0}
        swept = [a for a in same if a["state"] == "swept"]
        if swept or not sources:  # what the sweep charged: only the next sweep can tell
            self.store(attempt["key"], "billed")
            return
        sources[0]["generation"] = source
        if told:
            sources[0] |= {"state": "done", "cost": sources[0]["truth"]}
        self.store(attempt["key"], "billed")

    @precondition(lambda self: self.has(*OPEN))
    @rule(data=st.data(), refuse=st.booleans())
    def release(self, data: st.DataObject, refuse: bool) -> None:
        number, attempt = self.pick(data, *OPEN)
        refusal = Reply(403, b"no") if refuse else None
        self.any_ledger(data).do(operations.release(number, "429", refusal))
        attempt |= {"state": "released", "truth": 0}
        if refuse:
            self.store(attempt["key"], "refused")

    @precondition(lambda self: self.has("sent"))
    @rule(data=st.data(), everything=st.booleans())
    def lose(self, data: st.DataObject, everything: bool) -> None:
        sent = [i for i, a in self.attempts.items() if a["state"] == "sent"]
        for number in sent if everything else [self.pick(data, "sent")[0]]:
            self.any_ledger(data).do(operations.mark_unknown(number, "reset", raw=b"{"))
            self.attempts[number]["state"] = "unknown"

    def groups(self) -> list[tuple[str, ...]]:
        groups = [("unknown",), ("done",), ("swept",), ("released",), OPEN]
        return [group for group in groups if self.has(*group)]

    @precondition(lambda self: self.attempts)
    @rule(data=st.data())
    def reconcile(self, data: st.DataObject) -> None:
        number, attempt = self.pick(data, *data.draw(st.sampled_from(self.groups())))
        assert self.any_ledger(data).do(operations.reconcile(number, Pico(attempt["truth"])))
        if attempt["state"] == "unknown":
            attempt |= {"state": "done", "cost": attempt["truth"]}

    @precondition(lambda self: self.has("released"))
    @rule(data=st.data())
    def touch_what_is_closed(self, data: st.DataObject) -> None:
        number, _ = self.pick(data, "released")
        ledger = self.any_ledger(data)
        for action in (
            lambda: ledger.do(operations.settle(number, Bill(Pico(1)), Reply(200, b""))),
            lambda: ledger.do(operations.release(number, "")),
            lambda: ledger.do(operations.mark_unknown(number, "")),
        ):
            with pytest.raises(AttemptClosed):
                action()

    @rule(data=st.data(), clean=st.booleans())
    def owner_ends(self, data: st.DataObject, clean: bool) -> None:
        place = data.draw(st.integers(0, 2))
        ledger, self.ledgers[place] = self.ledgers[place], Ledger(self.target)
        if clean:
            ledger.close()
            self.adopt(ledger.owner)
        else:  # as after kill -9: nobody tells the ledger
            retire(ledger.owner)
            self.dead.append(ledger)

    @precondition(lambda self: any(self.is_dead(a["owner"]) for a in self.attempts.values()))
    @rule(data=st.data())
    def adopt_dead(self, data: st.DataObject) -> None:
        expected = sum(self.adopt(ledger.owner) for ledger in self.dead)
        assert self.any_ledger(data).do(operations.adopt_dead()) == expected

    @precondition(lambda self: self.has("unknown"))
    @rule(data=st.data(), run=st.sampled_from(["run:1", "run:2"]))
    def sweep(self, data: st.DataObject, run: str) -> None:
        ledger = self.any_ledger(data)
        mine = {i: a for i, a in self.attempts.items() if run in a["scopes"]}
        usage = sum(a["truth"] for a in mine.values() if a["state"] not in OPEN)
        if any(a["state"] in OPEN for a in mine.values()):
            with pytest.raises(NotQuiescent):
                ledger.do(sweep(run, Pico(usage + 1000), Pico(1000)))
            return
        unknown = {i: a for i, a in mine.items() if a["state"] == "unknown"}
        result = ledger.do(sweep(run, Pico(usage + 1000), Pico(1000)))
        assert result.attempts == len(unknown)
        costs = dict(ledger._store.read("SELECT id, cost FROM attempt WHERE state = 'swept'")[1])
        for number, attempt in unknown.items():
            assert 0 <= costs[number] <= attempt["reserve"]
            attempt |= {"state": "swept", "cost": costs[number]}
        assert result.swept_pico == sum(a["cost"] for a in unknown.values())
        # Nobody knows which scope of them the sum was for: each is charged the most it can be.
        for scope in SCOPES:
            part = [a for a in unknown.values() if scope in a["scopes"]]
            most = min(result.swept_pico, sum(a["reserve"] for a in part))
            self.careful[scope] += most - sum(a["cost"] for a in part)
        assert self.sums(run) == (usage, 0, 0)

    # -- what must always hold ---------------------------------------------------------

    @invariant()
    def money_is_exact_and_within_the_ceilings(self) -> None:
        status = self.ledgers[0].status()
        for scope in SCOPES:
            if scope not in status:
                assert self.sums(scope) == (0, 0, 0)
                continue
            held = status[scope]
            assert (held.spent, held.reserved, held.unknown) == self.sums(scope), scope
            there = [a for a in self.attempts.values() if scope in a["scopes"]]
            billed = sum(a["truth"] for a in there if a["state"] not in OPEN)
            assert billed <= held.spent + held.unknown, scope
            assert held.ceiling == self.ceilings[scope]
            if held.ceiling is not None and scope not in self.over:
                assert held.spent + held.reserved + held.unknown <= held.ceiling

    @invariant()
    def rows_are_the_models(self) -> None:
        read = self.ledgers[1]._store.read
        found = {i: (s, c) for i, s, c in read("SELECT id, state, cost FROM attempt")[1]}
        assert set(found) == set(self.attempts)
        for number, attempt in self.attempts.items():
            state, cost = found[number]
            assert state == attempt["state"]
            assert (cost or 0) == (attempt["cost"] or 0)
        # No reply is lost.
        assert dict(read("SELECT key, outcome FROM reply")[1]) == self.replies
        assert set(self.ledgers[0].quarantined()) == self.quarantined

    @invariant()
    def one_flight_for_each_key(self) -> None:
        claims = self.ledgers[2]._store.read("SELECT key, attempt FROM claim")[1]
        flying = [(a["key"], i) for i, a in self.attempts.items() if a["state"] in OPEN]
        assert sorted(claims) == sorted(flying)
        # Whatever the cap: nobody else asks the same meanwhile.
        questions = [a["key"] for a in self.attempts.values() if a["state"] in OPEN]
        assert len(questions) == len(set(questions))


def test_any_order_of_operations(target: str | Path, tmp_path: Path) -> None:
    count = 0

    def fresh() -> str | Path:
        nonlocal count
        count += 1
        if isinstance(target, Path):
            return tmp_path / f"{count}.db"
        import psycopg

        with psycopg.connect(target, autocommit=True) as connection:
            connection.execute("DROP SCHEMA IF EXISTS composer_ledger CASCADE")
        return target

    examples, steps = (60, 50) if isinstance(target, Path) else (15, 40)
    run_state_machine_as_test(
        cast(Any, lambda: Machine(fresh)),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
