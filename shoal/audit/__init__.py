"""Proof that nothing before a signed statement was altered, removed or back-dated."""
