"""Budgets: amounts that are never overspent, and the rights of nodes to spend them."""
