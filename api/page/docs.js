// The API's documentation: Swagger UI over our schema.

SwaggerUIBundle({
  url: new URL("openapi.json", document.baseURI).href,
  dom_id: "#api",
  deepLinking: true,
  validatorUrl: null, // nothing is asked of another server
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
