"""Codecs: speech as tokens of a language model, and back."""
