"""What the user asks for: which numbers each tensor and weight gets, by module name, glob or type."""
