"""`hf-rlhf eval`: several saved models on the same held-out prompts, in a single table."""
