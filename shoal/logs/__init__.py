"""One line for each event: `events` is the table of all, `lines` writes them, `forms` is how they look."""
