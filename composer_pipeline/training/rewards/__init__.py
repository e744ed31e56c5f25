"""Rewards of actions from recorded traces alone: no sandbox, no judge model.

Belongs here: what an answer to a recorded state is worth, as named parts with a value and a reason
each. Does not belong here: agreement of teachers (``preferences``), which decides what the
consensus is, and groups (``trainers.trl.channels.grpo``).
"""

from composer_pipeline.training.rewards.case import Case, case_of
from composer_pipeline.training.rewards.grader import Grade, Grader
from composer_pipeline.training.rewards.match import action_match
from composer_pipeline.training.rewards.parts import PARTS, Scored

__all__ = ["PARTS", "Case", "Grade", "Grader", "Scored", "action_match", "case_of"]
