"""Leaf facts that every other layer may use: dtypes, shapes, errors, configuration, counters."""
