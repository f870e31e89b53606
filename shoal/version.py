"""The version: declared here once, for the package, the node's status and the build."""

__version__ = "0.1.0"
