"""Registers, sets and maps over HTTP, where a route is not derived."""
