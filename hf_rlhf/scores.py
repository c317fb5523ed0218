"""The score of a completion, as rewards, results and contracts have it."""

Score = float | None
"""The score of one completion. None means that the reward abstains, which is not the same as 0."""
LARGEST_SCORE = 3.4e38
"""Of either sign: trainers compute in float32."""
