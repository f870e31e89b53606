"""Operations on threads that are made of several requests, for handles and HTTP alike."""
