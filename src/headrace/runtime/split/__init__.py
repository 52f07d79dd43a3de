"""A backward in two halves: I hands on the gradient of the stage's input, W computes those of its weights later."""
