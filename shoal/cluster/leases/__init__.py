"""Leases: who may drive something alone, for how long, under which fencing number, and who is next. Pure."""
