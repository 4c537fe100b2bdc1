"""Documents with markup -> sentences to translate, and their translations -> documents."""
