"""A node keeps, proves and names the contents of files, and finds what is needed no more."""
