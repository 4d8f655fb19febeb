"""One module a data-parallel wrapper: `detect` finds it in a description, `unwrap` lifts its template."""
