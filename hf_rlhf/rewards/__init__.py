"""Rewards: composition and gates; judges are in `hf_rlhf.rewards.judges`."""
