"""Pages in a real browser: Chromium, driven by its own driver."""
