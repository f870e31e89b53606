"""Show a run of the demo: on a terminal, in lines, and in its last words."""
