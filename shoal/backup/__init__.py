"""Backups in a bucket: their format, how a bucket is read and extended, and the clouds and directories that hold it."""
