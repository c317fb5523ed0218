"""Reward models of sound, from pairs of clips: how they read clips, their training, their use."""
