"""Build pipeline-parallel training yourself, in ten exercises: see README.md."""
