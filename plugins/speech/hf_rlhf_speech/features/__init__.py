"""Acoustic features of an utterance: numbers with units; None where nothing can be measured."""
