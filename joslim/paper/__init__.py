"""The figures of the paper: what each of them trains, and how it is drawn.

`figures.py` is the table of them, `making.py` trains and draws, the other files draw one kind each.
"""
