"""Model folders <-> the formats of other systems."""
