"""The parts of the API that handle every HTTP request and answer."""
