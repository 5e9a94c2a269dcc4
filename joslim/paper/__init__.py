"""The figures of the paper: `figures.py` is the table of them and of their trainings, `making.py`
trains and draws, `panels.py` groups runs and draws curves, `drawings.py` draws everything else.
"""
