"""The pure state of journals: the rows, and how changes fold into them. It does no I/O and reads no clock."""
