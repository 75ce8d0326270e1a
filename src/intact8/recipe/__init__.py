"""What the user asks for, and what of the network that makes integers: schemes, recipes, placement."""
