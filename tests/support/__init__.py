"""Helpers that several test files share; nothing of the product imports this."""
