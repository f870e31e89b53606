"""Maps of registers, counters and sets by key."""
