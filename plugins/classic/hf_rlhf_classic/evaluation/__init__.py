"""`hf-rlhf eval`: checkpoints side by side."""
