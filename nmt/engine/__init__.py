"""One process's place in the machine: device, threads, precision, allocator, random state.

Takes plain values, gives objects that the loops use without asking again.
Called by commands and training.
"""
