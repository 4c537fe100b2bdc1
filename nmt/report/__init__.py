"""Pages and charts in HTML and SVG."""
