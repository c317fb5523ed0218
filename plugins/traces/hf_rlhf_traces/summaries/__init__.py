"""Summarise an agent's results so far: write, check, and convert to training rows."""
