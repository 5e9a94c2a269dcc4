"""What a run has to show: tables for the terminal, and pictures."""
