"""Nine agents survey the standard library on one store, survive two `kill -9`, and are checked by a recount."""
