"""Convert model folders from and to the formats of other systems."""
