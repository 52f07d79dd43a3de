"""The user's model: its layers, the cut through them, where they compute and in which mode."""
