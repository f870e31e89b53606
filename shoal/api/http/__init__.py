"""What every HTTP request and answer goes through."""
