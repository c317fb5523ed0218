"""Compare several saved models on the same held-out prompts in a table: `hf-rlhf eval`."""
