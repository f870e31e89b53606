"""A module that nothing imports: hostile bytes name it, and whoever imports it because of them has run code."""
