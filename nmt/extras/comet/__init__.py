"""COMET scores in evaluation, in validation and in minimum Bayes risk decoding."""
