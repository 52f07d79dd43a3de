"""Pictures of schedules and curves, drawn with matplotlib, which is imported only when one is drawn.

Each takes plain numbers and gives a matplotlib Figure; `canvas.save` writes it, the same numbers as the same bytes.
"""
