"""Access control: tokens, the rights that they grant, and the session that checks them."""
