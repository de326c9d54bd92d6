"""Strings and ids: tokenizers, detokenizing streams, stop strings, chat templates."""
