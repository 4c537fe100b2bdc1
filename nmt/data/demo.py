def demo_pairs(*a):
    raise NotImplementedError
