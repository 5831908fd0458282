A running member reads its closed segments again at a bounded rate (`scrub_bytes_per_s`), and gets what has rotted from its peers.
