"""The score of a completion in rewards, results and contracts."""

Score = float | None
"""The score of a completion. None means that the reward abstains, which is not 0."""
LARGEST_SCORE = 3.4e38
"""Largest magnitude: trainers compute in float32."""
