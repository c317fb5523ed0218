"""Summaries of what an agent has seen so far: made, checked, and turned into training rows."""
