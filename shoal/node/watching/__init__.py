"""Watches: who is told what became durable, and who is present."""
