"""Requests of shared documents."""
