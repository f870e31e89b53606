"""Nine agents survey the standard library on one store, survive a `kill -9`, and are checked by a recount."""
