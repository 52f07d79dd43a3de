"""The tests of each exercise, for whichever files `course.chosen` names."""
