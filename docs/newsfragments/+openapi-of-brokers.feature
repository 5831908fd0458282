`/openapi.json` of brokers and name servers describes their admin pages as OpenAPI 3.1.
