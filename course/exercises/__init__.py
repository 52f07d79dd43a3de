"""Yours: fill in the TODOs."""
