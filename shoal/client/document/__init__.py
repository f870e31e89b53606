"""Shared documents: the handle, and the mirror that it uses."""
