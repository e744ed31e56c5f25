"""What would have helped: hints from errors in the trace, and from what teachers did."""
