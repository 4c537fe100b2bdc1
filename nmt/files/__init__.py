"""Files and folders: readers, atomic writes, hashes, manifests and locks. Never imports torch."""
