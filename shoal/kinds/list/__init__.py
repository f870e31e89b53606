"""Lists: values in one order, at positions that never clash."""
