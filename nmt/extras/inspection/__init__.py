"""A model seen from inside: each part of `nmt inspect` as figures, and figures as pages."""
