"""Backups of a cluster: shipping what its nodes hold to a bucket, and a directory made of what is there."""
