"""Acoustic features of an utterance: numbers with units; None if undefined."""
