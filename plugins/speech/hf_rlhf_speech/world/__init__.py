"""A world with known truth: synthetic speech whose flaws, and so whose quality, are known."""
