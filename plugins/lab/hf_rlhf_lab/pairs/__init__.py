"""Preference pairs chosen by reward models that were trained without them."""
