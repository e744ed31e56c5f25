"""Nothing private leaves: one boundary, used by every room that stores, sends or publishes.

Belongs here: finding and replacing secrets, names and places in texts and JSON values.
Does not belong here: where texts come from or where they go.
"""

from composer_pipeline.redaction.explain import Explanation, explain_file
from composer_pipeline.redaction.finders.people import user_names
from composer_pipeline.redaction.second_net import second_opinion
from composer_pipeline.redaction.text import (
    find_secrets,
    json_redactor,
    redact_json,
    redact_text,
    redact_value,
)
from composer_pipeline.redaction.user_rules import (
    RedactionRules,
    active_rules,
    redaction_version,
)
from composer_pipeline.redaction.values import strings
from composer_pipeline.versions import REDACTION_VERSION

__all__ = [
    "REDACTION_VERSION",
    "Explanation",
    "RedactionRules",
    "active_rules",
    "explain_file",
    "find_secrets",
    "json_redactor",
    "redact_json",
    "redact_text",
    "redact_value",
    "redaction_version",
    "second_opinion",
    "strings",
    "user_names",
]
