"""A crew: the desired agents of a space, each driven by exactly one of the machines that run the crew."""
