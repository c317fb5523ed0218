"""YAML becomes typed values that know their lines; the registry of plugins."""
