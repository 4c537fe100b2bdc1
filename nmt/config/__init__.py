"""Every knob, typed and checked, without torch.

In: a YAML file and overrides. Out: a frozen `RunConfig`, or one `ConfigError` that names
every problem. Called by the command line and by users of the Python API.
"""
