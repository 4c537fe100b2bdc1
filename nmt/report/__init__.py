"""HTML pages with SVG charts."""
