"""A world of refiner problems small enough for a policy of a million parameters."""
