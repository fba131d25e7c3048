"""Find texts of evaluation sets in other texts: by their words, exactly, at the speed of reading."""
