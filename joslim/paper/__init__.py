"""The figures of the paper: their trainings, and how they are drawn.

`figures.py` is the table of them, `making.py` trains and draws, `panels.py` groups runs and draws
curves, and the other files draw one kind of figure each.
"""
