"""What a normalizer does to recorded episodes: numbers, warnings and a page; trains nothing."""
