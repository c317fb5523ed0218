"""Rewards of the steps of a solution: data, the trainers `prm` and `orm`, the reward."""
