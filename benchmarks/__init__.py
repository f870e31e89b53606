"""What Shoal does on this machine, measured in one run: `python -m benchmarks`.

`commit.py` measures the group commit alone, and is run by itself.
"""
