"""Rewards and gates on audio: all score the sound of a completion, and `intelligible` its words."""
