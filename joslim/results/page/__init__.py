"""One page of HTML that shows everything about some runs, and opens offline."""
