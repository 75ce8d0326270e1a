"""Programs in other people's formats."""
