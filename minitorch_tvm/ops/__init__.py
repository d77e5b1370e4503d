"""Primitive ops, one class each, and the functions that record and compose them."""
