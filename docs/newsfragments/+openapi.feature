`/openapi.json` describes a member's admin pages as OpenAPI 3.1.
