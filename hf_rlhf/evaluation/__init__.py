"""Measuring models: texts to rows to intervals."""
