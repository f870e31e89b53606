"""Operations on their way: from the log to peers, and from peers into the rows."""
