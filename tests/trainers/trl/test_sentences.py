"""What people read of a run while it goes."""

from trainers.__main__ import sentence


def test_a_round_says_what_it_merged_and_who_was_not_in_it() -> None:
    event = {
        "event": "round", "round": 3, "of": 6, "included": [0], "merged": True, "tokens": 6481,
        "bytes": 16448, "replicas": 3,
        "rejected": {"2": "its delta has values that are not finite"},
    }  # fmt: skip
    assert sentence(event) == (
        "round 3/6 committed by replicas 0; 6,481 tokens, 16,448 bytes; replica 1 is missing;"
        " replica 2: its delta has values that are not finite"
    )
    nothing = {**event, "included": [], "merged": False}
    assert sentence(nothing).startswith("round 3/6 merged nothing (replica 2: its delta")


def test_a_replica_that_ended_says_how() -> None:
    ended = {"event": "replica_ended", "slot": 1, "code": -9, "restart": 1, "sentence": "{"}
    assert sentence(ended) == "replica 1 was killed (SIGKILL); restart 1"
    last = {**ended, "code": 1, "restart": 0, "sentence": "no memory"}
    assert sentence(last) == "replica 1 ended with 1 (no memory) and is not started again"
