`python -m benchmarks.guard` counts what one append and one put cost in steps of the interpreter, on any machine the same, and the tests fail when a hot road becomes a tenth dearer.
