"""Shared documents: Yjs updates as rows, and the content that they build."""
