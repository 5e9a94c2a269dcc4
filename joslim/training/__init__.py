"""One step of slimmable training, and what it is made of."""
