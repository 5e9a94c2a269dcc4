"""Reading run folders, grouping runs, and showing them as tables, pictures and a page."""
