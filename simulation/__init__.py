"""Whole clusters of real nodes, with clients, in virtual time from one seed: `docs/SIMULATION.md`."""
