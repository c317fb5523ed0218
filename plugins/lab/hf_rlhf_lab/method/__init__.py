"""From criteria to a reward that one may train on, in steps that stop at the first failure."""
