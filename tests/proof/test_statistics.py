"""Intervals of the proof: how often a difference of nothing is called one, and what they find.

The simulated grids share nothing with the code under test: each answer is a coin whose odds depend
on the session, the seed, the arm and the kind of mistake. ``python -m tests.proof.test_statistics``
prints the shares for thousands of grids with 3, 5 and 8 seeds, as docs/proof.md quotes them.
"""

import sys
from itertools import product
from math import comb

import numpy as np
import pytest

from composer_pipeline.evaluation.judge import Judgement
from composer_pipeline.evaluation.report import estimate as sessions_only
from composer_pipeline.evaluation.results import StateResult
from examples.proof.statistics import contrast, estimate, holm, loss_bound

KINDS = 12  # of mistakes
#: Standard deviations, in log odds, of what an answer's odds depend on; `arm`: it differs by arm.
WORLDS = {
    "nothing but the states": {"state": 1.0},
    "sessions": {"session": 1.0, "session_arm": 0.7},
    "seeds": {"seed": 0.3, "seed_arm": 0.3},
    "sessions and seeds": {"session": 1.0, "session_arm": 0.7, "seed": 0.3, "seed_arm": 0.2},
    "sessions within a seed": {"session": 0.5, "session_seed_arm": 1.0},
    "kinds within a seed": {"state": 1.0, "kind_seed_arm": 1.0},
    "near the ceiling": {"level": 4.5, "session": 1.0, "seed": 0.5, "seed_arm": 1.0},
}


def grids(number, *, seeds=5, sizes=(1, 2, 3), units=240, effect=0.0, rng, **world):
    """Return answers (grid, arm, seed, state) and each state's session."""
    of = world.get
    owner = np.repeat(np.arange(units), rng.choice(sizes, units))
    kind = rng.integers(KINDS, size=len(owner))

    def draw(name, *shape):
        return rng.normal(0, of(name, 0.0), (number, *shape))

    odds = of("level", 0.0) + draw("state", 1, 1, len(owner))
    odds = odds + draw("session", 1, 1, units)[..., owner]
    odds = odds + draw("session_arm", 2, 1, units)[..., owner]
    odds = odds + draw("session_seed_arm", 2, seeds, units)[..., owner]
    odds = odds + draw("seed", 1, seeds, 1) + draw("seed_arm", 2, seeds, 1)
    odds = odds + draw("kind_seed_arm", 2, seeds, KINDS)[..., kind]
    odds[:, 0] += effect
    return rng.random(odds.shape) < 1 / (1 + np.exp(-odds)), owner
