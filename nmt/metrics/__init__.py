"""Scores of translations and how sure they are.

In: hypotheses and references as text. Out: `Score` values. Called by commands; knows no model.
"""
