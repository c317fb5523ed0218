"""Post-training with rewards you can trust: plugins, composition by name, honest model cards."""

__version__ = "0.1.0"
