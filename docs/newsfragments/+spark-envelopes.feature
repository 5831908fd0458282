The Spark source has the columns ``timestamp`` and ``headers`` with ``option("envelopes", "true")``, in batches, streams and exports; the default schema is as before.
