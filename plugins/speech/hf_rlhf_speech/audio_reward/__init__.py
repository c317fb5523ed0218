"""Reward models of sound, trained on pairs of clips: inputs, training and use."""
