"""Pages of one HTML file: the shell, what is drawn in it, and what is said of a run."""
