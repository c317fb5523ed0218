"""What a reward is worth before it trains anything: agreement, calibration, length, hacks."""
