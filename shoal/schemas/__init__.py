"""Schemas of states: those that a thread declares in its own process, and JSON Schemas that nodes enforce."""

from shoal.schemas.schema import Schema

__all__ = ["Schema"]
