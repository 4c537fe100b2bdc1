"""Test sets and systems -> scores, confidence intervals, significance and gates."""
