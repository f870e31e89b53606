"""Snapshots of partitions: sending them, staging them, and replacing a partition by one."""
