"""The versions of what is computed, one line each."""

#: Session records to states and messages.
PARSER_VERSION = "3"
#: What is private, and what takes its place; a user's rules add to it. It is part of the lake:
#: messages that another version redacted are redacted again from the archive.
REDACTION_VERSION = 7
#: A state to a chat request. Part of every reply's provenance; raise it when the bytes change.
CONVERTER_VERSION = "1"
#: Error turns to hints.
HINTS_VERSION = "1"
#: States and replies to votes and pairs.
PAIRS_VERSION = "2"
#: Pairs and a recipe to normalised pairs.
NORMALIZE_VERSION = "1"
#: A dataset and a recipe to a trained model; what was trained also tells a hash of the code.
TRAINING_VERSION = "1"
#: Answers to an evaluation's figures.
EVALUATION_VERSION = "2"
#: A dataset and its runs to the report.
REPORT_VERSION = "1"
