"""A checked run file becomes a `Run`: everything is resolved before weights load."""
