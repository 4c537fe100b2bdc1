"""Views of the inside of a model, and their rendering as text, HTML and SVG."""
