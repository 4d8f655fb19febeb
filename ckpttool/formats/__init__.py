"""One module a format: `sniff`, `Reader`, and `write` where ckpttool can write it."""
