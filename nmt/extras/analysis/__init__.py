"""Analyses of `nmt evaluate`: gates, slices, robustness, confidence, external metrics, reports."""
