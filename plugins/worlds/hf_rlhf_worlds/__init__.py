"""Tiny worlds with known truth, for one-minute training runs on a CPU and for tests.

`arithmetic` and `tastes` are for SFT, preferences and policy optimization; `towns` asks for cited
facts; `multihop` makes search traces. `tiny_models` and `tokenizers` build small random models; the
repository's experiments/recipes trains the shipped models. Nothing here imports a plugin.
"""
