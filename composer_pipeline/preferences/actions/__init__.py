"""When are two actions the same? Canonical forms, levels of equality, knowledge of files.

Does not belong here: votes over several actions (``preferences.agreement``).
"""

from composer_pipeline.preferences.actions.call_levels import Situation
from composer_pipeline.preferences.actions.canonical import CanonicalAction, canonical, read_action
from composer_pipeline.preferences.actions.file_knowledge import KnownFiles
from composer_pipeline.preferences.actions.levels import Semantic, level, level_of
from composer_pipeline.preferences.actions.mutation import mutates
from composer_pipeline.preferences.actions.shell.lines import targets
from composer_pipeline.preferences.actions.shell.words import Place
from composer_pipeline.preferences.actions.tool_classes import class_of
from composer_pipeline.preferences.actions.tool_rules import Level

__all__ = [
    "CanonicalAction",
    "KnownFiles",
    "Level",
    "Place",
    "Semantic",
    "Situation",
    "canonical",
    "class_of",
    "level",
    "level_of",
    "mutates",
    "read_action",
    "targets",
]
