"""Post-training of text-to-speech models: acoustic rewards, codecs and trainers."""
