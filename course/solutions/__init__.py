"""One way to solve each exercise."""
