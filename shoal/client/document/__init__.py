"""Shared documents: the handle, and the mirror behind it."""
