"""Published results beside what comes out here: one module per table, each with `reproduce()`."""
