"""The classic RLHF pipeline: SFT, reward model, DPO, iterative DPO, PPO, GRPO."""
