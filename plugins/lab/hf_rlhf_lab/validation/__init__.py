"""Validate a reward before training: agreement, calibration, length, hacks."""
