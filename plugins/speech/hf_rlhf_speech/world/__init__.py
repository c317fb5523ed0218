"""A world with known truth: synthetic speech with known flaws, and so with known quality."""
