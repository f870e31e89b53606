"""The handles of leases, which users hold."""
