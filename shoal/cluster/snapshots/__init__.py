"""Whole partitions from peers: which to take, and whether their rows are believed. Pure."""
