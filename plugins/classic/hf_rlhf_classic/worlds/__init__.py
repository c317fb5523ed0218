"""Two worlds small enough for a policy of a few hundred thousand parameters, with known truth."""
