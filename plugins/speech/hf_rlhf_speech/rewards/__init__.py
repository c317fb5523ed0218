"""Rewards and gates that listen: all score the sound of a completion, and one its words."""
