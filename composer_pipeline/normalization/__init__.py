"""Filtering and cleaning of pairs with data-juicer."""
