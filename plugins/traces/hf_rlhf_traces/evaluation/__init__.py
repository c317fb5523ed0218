"""Measure a model on the two tasks with held-out questions, and present the results."""
