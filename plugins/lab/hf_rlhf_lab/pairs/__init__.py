"""Preference pairs chosen by reward models that were not trained on them."""
