"""Turn criteria into a reward for training, in steps that stop at the first failure."""
