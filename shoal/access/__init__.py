"""Who may do what: tokens, the rights that they grant, and the session that checks them."""
