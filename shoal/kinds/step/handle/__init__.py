"""The handles of steps and statuses, which users hold."""
