"""Replicated JSON Schemas, which nodes enforce."""
