"""Versions of what is computed, raised when the same input gives another result."""

#: Session records to states and messages.
PARSER_VERSION = "6"
#: The redaction rules. Messages that another version redacted are redacted again.
REDACTION_VERSION = 8
#: A state to a chat request; part of every reply's provenance.
CONVERTER_VERSION = "1"
#: Error turns to hints.
HINTS_VERSION = "2"
#: Edits and git to outcomes.
OUTCOMES_VERSION = "1"
#: States and replies to votes and pairs.
PAIRS_VERSION = "4"
#: Pairs and a recipe to normalised pairs.
NORMALIZE_VERSION = "1"
#: A dataset and a recipe to a trained model.
TRAINING_VERSION = "1"
#: A dataset and the rules of nights to a decision.
NIGHTS_VERSION = "1"
#: Answers to an evaluation's figures.
EVALUATION_VERSION = "2"
#: A dataset and its runs to the report.
REPORT_VERSION = "2"
