"""Nine agents survey the standard library on one store, through two `kill -9`, and a recount judges them."""
