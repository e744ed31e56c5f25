"""The same question for Bash lines: parse, canonical words and options, targets, effect."""
