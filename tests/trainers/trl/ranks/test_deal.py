"""Rows are dealt by tokens, each to one rank, alike on every rank."""

from trainers.trl.ranks.deal import dealt, idle_share


def test_every_item_falls_to_one_rank_and_loads_are_even():
    sizes = [900, 100, 500, 400, 300, 200]
    hands = dealt(range(6), sizes, 3)
    assert sorted(i for hand in hands for i in hand) == list(range(6))
    assert sorted(sum(sizes[i] for i in hand) for hand in hands) == [700, 800, 900]
    assert all(hand == sorted(hand) for hand in hands), "in their order"


def test_fewer_items_than_ranks_leave_the_last_ones_none():
    assert dealt(["a"], [5], 3) == [["a"], [], []]
    assert dealt([], [], 2) == [[], []]


def test_one_rank_has_everything():
    assert dealt("abc", [1, 3, 2], 1) == [["a", "b", "c"]]


def test_the_share_that_waits_for_the_busiest():
    assert idle_share([10, 10]) == 0
    assert idle_share([10, 0]) == 0.5
    assert idle_share([0, 0]) == 0
