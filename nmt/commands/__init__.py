"""One function for each command: a whole configuration in, work done, a summary out."""
