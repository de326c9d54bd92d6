"""Contracts that every layer shares: steps, runners, parameters, types, errors, flags."""
