"""The handles of worklists and inboxes, which users hold."""
