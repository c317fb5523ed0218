"""How the tiny models that the plugins ship were made: `python -m hf_rlhf_worlds.recipes NAME`."""
