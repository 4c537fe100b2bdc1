"""One function per command: options in, result out."""
