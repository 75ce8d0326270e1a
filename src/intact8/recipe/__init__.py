"""What a user asks for: schemes, recipes and overrides for some modules."""
