"""The REST API: routes, response models and the OpenAPI document."""
