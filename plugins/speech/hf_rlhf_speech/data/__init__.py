"""Texts to speak, and pairs of clips, as datasets for the trainers."""
