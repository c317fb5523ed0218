"""A small world of towns and people, in which questions take several searches to answer.

Traces of an agent that answers them can be generated in any number, with the truth known, and a
tiny model that has read about other such worlds learns from a few hundred of them.
"""
