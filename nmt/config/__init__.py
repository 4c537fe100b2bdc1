"""The configuration, without torch.

Reads a YAML file and overrides into a frozen `RunConfig`, or raises one `ConfigError` with all
problems.
"""
